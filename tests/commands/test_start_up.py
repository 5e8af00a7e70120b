"""`allennlp predict` imports what it needs, and finds every component all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

FIXTURES = Path(__file__).parent.parent / "fixtures" / "release_0_1"
SCRIPT = """
import json
import sys
from beem_plugin.commands import main

archive, texts, output = sys.argv[1:]
predict = ["predict", archive, texts, "--output-file", output, "--silent"]
assert main("allennlp", predict) == 0
seldom_needed = {"accelerate", "scipy", "torch._dynamo", "beem_plugin.training", "beem_plugin.decoding"}
assert not seldom_needed & set(sys.modules), seldom_needed & set(sys.modules)

assert main("allennlp", [*predict, "-o", '{"model.exit_policy": {"type": "nothing"}}']) == 1
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models import Model, MultiExitCaptioner
print(json.dumps(ExitPolicy.list_available()), file=sys.stderr)
assert Model.by_name("multi_exit_captioner") is MultiExitCaptioner

from beem_plugin.backbones.loading import make_config, random_model
import torch
tiny = {"model_type": "modernbert", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
tiny |= {"intermediate_size": 8, "vocab_size": 9, "pad_token_id": 0}
model = random_model(make_config(tiny, "model"), "sdpa", "model").eval()
assert model(torch.tensor([[3, 4]])).last_hidden_state.isfinite().all(), "families that read torch's compiler work, too"
"""


def test_predict_imports_no_more_than_it_needs(tmp_path: Path) -> None:
    arguments = [str(FIXTURES / "classifier.tar.gz"), str(FIXTURES / "texts.csv"), str(tmp_path / "found.jsonl")]
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, env=variables, timeout=250
    )
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "found.jsonl").read_text(encoding="utf-8").splitlines()) == 24
    *_, error, names = [line for line in done.stderr.splitlines() if line.startswith(("error:", '["'))]
    assert "found 'nothing'" in error
    for name in json.loads(names):
        assert name in error
