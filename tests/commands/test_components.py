"""Commands that build components, in processes with nothing but the working directory to find things in."""

from __future__ import annotations

import textwrap

import pytest

from tests.forked import command

READER = """
    from beem_plugin.data.dataset_reader import DatasetReader

    @DatasetReader.register("counting")
    class CountingReader(DatasetReader):
        def __init__(self, repeat: int = 1) -> None:
            self.repeat = repeat

        def read(self, source: str) -> list:
            return list(source) * self.repeat
"""


@pytest.fixture
def project(tmp_path):
    """A user's own package, a config that uses it, and a script that has nothing to do with either."""
    package = tmp_path / "my_package"
    (package / "readers").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "readers" / "__init__.py").touch()
    (package / "readers" / "counting.py").write_text(textwrap.dedent(READER))
    (tmp_path / "config.jsonnet").write_text(
        "{ dataset_reader: { type: 'counting', repeat: 2 }, train_data_path: 'abc' }"
    )
    (tmp_path / "unrelated.py").write_text("open('mark', 'w').close()\n")
    return tmp_path


def test_a_users_own_package_is_found(project):
    result = command("count-instances", "config.jsonnet", "--include-package", "my-package", folder=project)
    assert result.stdout == "Success! One epoch of training contains 6 instances.\n", result.stderr
    assert not (project / "mark").exists()


def test_without_the_package_the_name_is_unknown_and_nothing_else_is_run(project):
    result = command("count-instances", "config.jsonnet", folder=project)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("error: dataset_reader.type: found 'counting', allowed: ")
    assert "Traceback" not in result.stderr
    assert not (project / "mark").exists()


def test_a_typo_is_one_line(project):
    arguments = ["-o", '{"dataset_reader.repat": 2}', "--include-package", "my_package"]
    result = command("count-instances", "config.jsonnet", *arguments, folder=project)
    assert result.returncode == 1
    message = "error: dataset_reader.repat: unknown key of counting, allowed: repeat"
    assert result.stderr.splitlines()[-1] == message


def test_the_installation_is_checked(tmp_path):
    result = command("test-install", "--include-package", "beem_plugin", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "CUDA devices: " in result.stdout and "ExitPolicy: " in result.stdout
