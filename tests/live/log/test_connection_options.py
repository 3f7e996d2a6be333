"""Connection strings that cannot be read are refused, and nothing shows a part of a password."""

from __future__ import annotations

import traceback

import pytest

pytest.importorskip("psycopg", reason="needs scannery[postgres]")

from contextlib import ExitStack

from scannery.bridges.importers.collection import PeerOptions
from scannery.bridges.importers.pgvector import open_pgvector
from scannery.live.log.location import DatabaseUrl
from scannery.live.log.mutation_log import LogRefusedError
from scannery.live.log.postgres.database import Database, connection_options
from scannery.pipelines.errors import PeerError

BAD = [
    "postgresql://u:topsecret%zz@127.0.0.1:1/db",
    "postgresql://u:top@secret@127.0.0.1:1/db",
    "postgresql://u:top/secret@127.0.0.1:1/db",
    "postgresql://u:secret@127.0.0.1:1secret/db",
    "postgresql://u@127.0.0.1:1/db?secret",
    "host=127.0.0.1 port=1 password=top secret",
    "host=127.0.0.1 password='topsecret",
]


@pytest.mark.parametrize("text", BAD)
def test_what_cannot_be_read_is_not_shown(text: str) -> None:
    assert connection_options(text) is None
    with pytest.raises(PeerError, match="special characters as %XX") as of_import, ExitStack() as stack:
        open_pgvector(text, PeerOptions(), stack)
    with pytest.raises(LogRefusedError, match="special characters as %XX") as of_log:
        Database(DatabaseUrl(text))
    for raised in (of_import.value, of_log.value):
        assert "secret" not in "".join(traceback.format_exception(raised)).replace(text, "")


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://u%40x:p%40ss@h:5/db",
        "postgresql://a@h1:1,h2:2/db",
        "postgresql:///db?host=/tmp",
        "dbname=x",
        "postgresql://h",
    ],
)
def test_others_are_read(text: str) -> None:
    assert connection_options(text) is not None
