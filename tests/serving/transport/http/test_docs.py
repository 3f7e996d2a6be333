"""The examples of docs/http.md, run by bash and curl."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scannery.embed import Encoder
from scannery.indexer import Store, parse_spec
from scannery.serving import Server, ServerConfig
from scannery.serving.transport.http import connect, connection, handler, head, server
from tests.data import ROOT, datapoints
from tests.served import MINILM, SENTENCES, TEXTS, publish_version, serving

PAGE = (ROOT / "docs" / "http.md").read_text()
EXAMPLES = re.findall(r"```bash\n(.*?)```\n```json\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def podcasts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("podcasts")
    spec = parse_spec({**TEXTS.model_dump(), "index": "podcasts"})
    encoder = Encoder.load(MINILM, device="cpu")
    columns: dict[str, list[Any]] = {
        "document_id": list(SENTENCES),
        "text": list(SENTENCES.values()),
        "letters": [len(text) for text in SENTENCES.values()],
    }
    vectors = encoder.encode_documents(list(SENTENCES.values()))
    table = datapoints(spec, vectors, ids=list(SENTENCES), columns=columns)
    store = Store.open(folder / "store", create=True)
    publish_version(store, spec, table, folder, encoder=encoder.fingerprint.to_dict())
    with serving(folder / "store") as running:
        yield running


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == PAGE.count("```bash") == 6


@pytest.mark.parametrize(("command", "answer"), EXAMPLES)
def test_examples_answer_what_the_page_says(podcasts: Server, command: str, answer: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    command = command.replace("localhost:7080", f"127.0.0.1:{podcasts.http_port}")
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=True, timeout=60)
    _holds(json.loads(done.stdout), json.loads(answer))


def _holds(found: Any, wanted: Any) -> None:
    """Check that everything that is wanted is there."""
    if isinstance(wanted, dict):
        assert wanted.keys() <= found.keys()
        for key, value in wanted.items():
            _holds(found[key], value)
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            _holds(one, other)
    else:
        assert found == wanted


def test_limits_are_those_of_the_code(tmp_path: Path) -> None:
    config = ServerConfig(store=str(tmp_path))
    for said in (
        f"| body | {config.max_request_bytes >> 20} MiB, also when it is decompressed; "
        f"{connect.MAX_JSON_BYTES >> 20} MiB in JSON; {config.body_timeout_s:g} s to arrive |",
        f"| headers | {head.MAX_HEADER_BYTES >> 10} KiB and {head.MAX_HEADERS} of them; "
        f"{connection.HEAD_WITHIN_S:g} s to arrive",
        f"| connections | {server.MAX_CONNECTIONS:,} in a worker",
        f"closed after {connection.IDLE_S:g} s, before their first good request after {connection.HEAD_WITHIN_S:g} s",
        f"less than {connection.MIN_READ_BYTES >> 10} KiB of one in {config.body_timeout_s:g} s",
        f"at most {config.max_request_s:g} s count",
        f"from {handler.MIN_GZIP_BYTES >> 10} KiB on",
    ):
        assert said in PAGE, said
