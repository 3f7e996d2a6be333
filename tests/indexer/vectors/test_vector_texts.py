from __future__ import annotations

import base64
import json
import time

import numpy as np
import pytest

from scannery.indexer.datapoints.field_mapping import FieldMapping
from scannery.indexer.errors import InvalidRecordError
from scannery.indexer.spec.spec_files import parse_spec
from scannery.indexer.vectors.vector_texts import CutVectorError, vector_in_text

VECTOR = np.random.default_rng(0).normal(size=40).astype(np.float32)
NUMBERS = VECTOR.tolist()

FORMS = {
    "json": json.dumps(NUMBERS),
    "json twice": json.dumps(json.dumps(NUMBERS)),
    "spaces around": f"  {NUMBERS}\n",
    "pgvector": "[" + ",".join(map(str, NUMBERS)) + "]",
    "postgres": "{" + ",".join(map(str, NUMBERS)) + "}",
    "postgres, quoted": '"{' + ",".join(map(str, NUMBERS)) + '}"',
    "tuple": str(tuple(NUMBERS)),
    "numpy": np.array_str(VECTOR, precision=9),
    "numpy on one line": np.array_str(VECTOR, precision=9, max_line_width=10_000),
    "repr of numpy": repr(VECTOR.astype(np.float64)),
    "repr of numpy with a type": f"array({NUMBERS}, dtype=float32)",
    "list of numpy's numbers": "[" + ", ".join(f"np.float32({one})" for one in NUMBERS) + "]",
    "torch": f"tensor({NUMBERS}, device='cuda:0')",
    "commas": ",".join(map(str, NUMBERS)),
    "commas and spaces": ", ".join(map(str, NUMBERS)),
    "spaces": " ".join(map(str, NUMBERS)),
    "tabs": "\t".join(map(str, NUMBERS)),
    "semicolons": ";".join(map(str, NUMBERS)),
    "bars": "|".join(map(str, NUMBERS)),
    "decimal commas": ";".join(map(str, NUMBERS)).replace(".", ","),
    "decimal commas and spaces": " ".join(map(str, NUMBERS)).replace(".", ","),
    "decimal commas in brackets": f"[{'  '.join(map(str, NUMBERS))}]".replace(".", ","),
    "decimal commas and tabs": "\t".join(map(str, NUMBERS)).replace(".", ","),
    "base64": base64.b64encode(VECTOR.tobytes()).decode(),
    "base64 for URLs": base64.urlsafe_b64encode(VECTOR.tobytes()).decode(),
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_forms_of_vectors(text: str):
    np.testing.assert_allclose(np.asarray(vector_in_text(text), np.float32), VECTOR, atol=1e-6)


@pytest.mark.parametrize("kind", ["float16", "float64"])
def test_other_number_types_in_base64(kind: str):
    text = base64.b64encode(VECTOR.astype(kind).tobytes()).decode()
    np.testing.assert_allclose(vector_in_text(text, kind), VECTOR, atol=1e-2)


@pytest.mark.parametrize(
    "text",
    ["", "5", "0.5", "2020-01-01", "documentation123", "https://example.com/a", "1 of 2", "a" * 64, "[a b]",
     "tensor([[0.1, 0.2]])", "1,5 €"],
)  # fmt: skip
def test_other_texts_stay_texts(text: str):
    assert vector_in_text(text) == text


@pytest.mark.parametrize(
    "text",
    [
        np.array_str(np.zeros(2000)),
        "[0.1 0.2 ... 0.3]",
        "[0.1, 0.2, ...]",
        "[0.1, …, 0.2]",
        "array([0., ..., 1.])",
    ],
)
def test_a_vector_that_was_cut_off_is_refused(text: str):
    with pytest.raises(CutVectorError):
        vector_in_text(text)
    spec = parse_spec({"index": "a", "source": {"vector": "embedding"}})
    error = FieldMapping.of(spec).fields["embedding"].value({"embedding": text})
    assert isinstance(error, InvalidRecordError)
    assert "embedding: numbers are left out where `...` stands" in error.message


@pytest.mark.parametrize(
    "text",
    ["1" + " " * 200_000 + "x", "array(" + ", x=" * 50_000, "0,1;" + " " * 200_000, "[" * 100_000, "A" * 400_000,
     "np.float32(" * 20_000],
    ids=range(6),
)  # fmt: skip
def test_time_is_linear(text: str):
    began = time.perf_counter()
    vector_in_text(text)
    assert time.perf_counter() - began < 2
