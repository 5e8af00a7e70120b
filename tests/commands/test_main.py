from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from beem_plugin import __version__
from beem_plugin.commands import Subcommand, main
from beem_plugin.common.errors import ConfigurationError, DataError

CONTRACT = {
    "ablate": "-s --serialization-dir --seeds --jobs -r --recover -f --force -o --overrides --include-package",
    "train": "-s --serialization-dir -r --recover -f --force -o --overrides --node-rank --dry-run "
    "--file-friendly-logging --include-package",
    "evaluate": "--output-file --predictions-output-file --weights-file --cuda-device -o --overrides --batch-size "
    "--batch-weight-key --extend-vocab --embedding-sources-mapping --file-friendly-logging --auto-names "
    "--engine --include-package",
    "predict": "--output-file --weights-file --batch-size --silent --cuda-device --use-dataset-reader "
    "--dataset-reader-choice --multitask-head -o --overrides --predictor --predictor-args --file-friendly-logging "
    "--format --input-field --engine --include-package",
    "trace": "--output-file --batch-size --cuda-device -o --overrides --weights-file --include-package",
    "replay": "--policy --calibrate-on --output-file --predictions-output-file -o --overrides --include-package",
    "build-vocab": "-f --force -o --overrides --include-package",
    "cached-path": "-d --cache-dir -x --extract-archive -f --force-extract --inspect --remove",
    "diff": "--strip-prefix-1 --strip-prefix-2 --scale --threshold",
    "find-lr": "-s --serialization-dir -o --overrides --start-lr --end-lr --num-batches --stopping-factor --linear "
    "-f --force --file-friendly-logging --include-package",
    "push-to-hf": "-n --repo-name -s --serialization-dir -a --archive-path -o --organization -c --commit-message "
    "-l --local-repo-path --repo-id --private --include-package",
    "diff-config": "-o --overrides",
    "print-results": "-k --keys -m --metrics-filename",
    "count-instances": "-o --overrides --include-package",
    "test-install": "--include-package",
}


def python(*arguments, cwd=None, **environment):
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), **environment}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def subcommand():
    """Registers a subcommand for one test: `subcommand(function)` makes `main(["probe"])` call it."""

    def add(function, **attributes):
        class Probe(Subcommand):
            requires_plugins = False

            def add_subparser(self, parser):
                subparser = parser.add_parser(self.name, help="only a test")
                subparser.set_defaults(func=function)
                return subparser

        for name, value in attributes.items():
            setattr(Probe, name, value)
        Subcommand.register("probe", exist_ok=True)(Probe)

    yield add
    Subcommand._registry.pop("probe", None)


@pytest.mark.parametrize("command", [[], *([name] for name in CONTRACT)])
def test_help_imports_nothing_heavy(command, tmp_path):
    script = textwrap.dedent(
        f"""
        import sys
        from beem_plugin.commands import main
        try:
            main("allennlp", {[*command, "--help"]!r})
        except SystemExit as exit:
            assert exit.code == 0
        heavy = {{"torch", "tango", "transformers", "numpy", "datasets", "_jsonnet"}} & set(sys.modules)
        assert not heavy, heavy
        """
    )
    result = python("-c", script, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "usage: allennlp" in result.stdout


@pytest.mark.parametrize("command", CONTRACT)
def test_every_option_of_the_contract_is_there(command, capsys):
    with pytest.raises(SystemExit):
        main("allennlp", [command, "--help"])
    words = capsys.readouterr().out.replace(",", " ").replace("[", " ").replace("]", " ").split()
    for option in CONTRACT[command].split():
        assert option in words


def test_help_states_defaults(capsys):
    with pytest.raises(SystemExit):
        main("allennlp", ["predict", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "how many inputs at once (default = 32)" in text
    assert "do not print predictions (default" not in text


def test_version_and_no_command(capsys):
    with pytest.raises(SystemExit):
        main("allennlp", ["--version"])
    assert capsys.readouterr().out == f"allennlp {__version__}\n"
    assert main("allennlp", []) == 0
    assert "diff-config" in capsys.readouterr().out


def test_python_m_is_the_same_command(tmp_path):
    result = python("-m", "beem_plugin", "--version", cwd=tmp_path)
    assert result.stdout == f"python -m beem_plugin {__version__}\n"


def test_an_error_is_one_line_and_its_status(subcommand, capsys, monkeypatch):
    def fail(args):
        raise ConfigurationError("model.x: found 1")

    monkeypatch.delenv("ALLENNLP_DEBUG", raising=False)
    subcommand(fail)
    assert main("allennlp", ["probe"]) == 1
    assert capsys.readouterr().err == "error: model.x: found 1\n"
    subcommand(fail, error_status=2)
    monkeypatch.setenv("ALLENNLP_DEBUG", "1")
    assert main("allennlp", ["probe"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_missing_file_is_one_line_and_a_bug_is_not_hidden(subcommand, capsys):
    subcommand(lambda args: Path("no/such/file").read_text())
    assert main("allennlp", ["probe"]) == 1
    assert capsys.readouterr().err == "error: no/such/file: No such file or directory\n"
    subcommand(lambda args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main("allennlp", ["probe"])


def test_the_status_of_a_command_is_returned(subcommand):
    subcommand(lambda args: 3)
    assert main("allennlp", ["probe"]) == 3
    subcommand(lambda args: object())
    assert main("allennlp", ["probe"]) == 0


def test_sigterm_and_ctrl_c(subcommand, capsys):
    def terminate(args):
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

    def interrupt(args):
        raise KeyboardInterrupt

    subcommand(terminate)
    assert main("allennlp", ["probe"]) == 143
    subcommand(interrupt)
    assert main("allennlp", ["probe"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    for number in range(200):
        (tmp_path / f"run{number}").mkdir()
        (tmp_path / f"run{number}" / "metrics.json").write_text('{"a": "%s"}' % ("x" * 5000))
    command = f"{sys.executable} -m beem_plugin print-results -k a -- {tmp_path} | head -n 1"
    result = subprocess.run(
        command,
        shell=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout == "model_run, a\n"
    assert result.stderr == ""


def test_a_plugin_brings_its_own_subcommand(tmp_path):
    (tmp_path / ".allennlp_plugins").write_text("my_plugin\nbroken_plugin\n")
    (tmp_path / "my_plugin.py").write_text(
        textwrap.dedent(
            """
            from beem_plugin.commands import Subcommand

            @Subcommand.register("greet")
            class Greet(Subcommand):
                requires_plugins = False

                def add_subparser(self, parser):
                    subparser = parser.add_parser(self.name, help="say hello")
                    subparser.set_defaults(func=lambda args: print("hello"))
                    return subparser
            """
        )
    )
    help_text = python("-m", "beem_plugin", "--help", cwd=tmp_path)
    assert "say hello" in help_text.stdout and "broken_plugin" in help_text.stderr
    assert python("-m", "beem_plugin", "greet", cwd=tmp_path).stdout == "hello\n"


def test_an_unknown_command(capsys):
    with pytest.raises(SystemExit) as exit:
        main("allennlp", ["trian"])
    assert exit.value.code == 2
    assert "invalid choice: 'trian'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["predict", "evaluate", "trace"])
@pytest.mark.parametrize("size", ["0", "-1", "9" * 20, "x"])
def test_a_batch_size_out_of_range_is_refused(command: str, size: str, capsys) -> None:
    with pytest.raises(SystemExit):
        main(argv=[command, "a.tar.gz", "b.csv", f"--batch-size={size}"])
    assert f"argument --batch-size: found '{size}', allowed: 1 to " in capsys.readouterr().err


def test_a_message_on_a_very_wide_table_is_short(subcommand, capsys):
    def fail(args):
        raise DataError("t.csv:2: no column 'text'; found: " + ", ".join(f"c{number}" for number in range(100_000)))

    subcommand(fail)
    assert main("allennlp", ["probe"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("error: t.csv:2: no column 'text'; found: c0, c1, ") and len(message) < 5000
