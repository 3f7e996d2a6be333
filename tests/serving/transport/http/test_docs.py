"""The limits of docs/http.md are those of the code; tests/test_docs_commands.py runs its examples."""

from __future__ import annotations

import re
from pathlib import Path

from scannery.embed import Encoder
from scannery.serving import ServerConfig
from scannery.serving.transport.http import connect, connection, handler, head, server
from tests.data import ROOT
from tests.served import MINILM

PAGE = (ROOT / "docs" / "http.md").read_text()


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
        f"credentials {handler.MAX_DROPPED_BYTES >> 20} MiB is read behind the answer, where the server asks for them; "
        f"of others {config.max_request_bytes >> 20} MiB, in {config.body_timeout_s:g} s |",
        f"at most {config.max_request_s:g} s count",
        f"from {connect.MIN_GZIP_BYTES >> 10} KiB on",
    ):
        assert said in PAGE, said


def test_the_embedding_is_that_of_the_model() -> None:
    match = re.search(r'"embedding": \[(-?[\d.]+), …', PAGE)
    assert match
    [vector] = Encoder.load(MINILM, device="cpu").encode_documents(["how do volcanoes form"])
    assert abs(vector[0] - float(match[1])) < 1e-3  # some processors compute with bfloat16
