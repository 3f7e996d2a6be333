"""Locations of logs, as users give them."""

from __future__ import annotations

from pathlib import Path

import pytest

from scannery.cli.options import given_log_root
from scannery.live.log.location import DatabaseUrl, log_root_of
from scannery.runtime.errors import ConfigError
from scannery.serving import MaintainConfig, ServerConfig


@pytest.mark.parametrize("text", ["postgresql://u@h/d", "postgres://h/d?sslmode=require", "postgresql://"])
def test_the_url_of_a_database(text: str) -> None:
    assert log_root_of(text) == DatabaseUrl(text)


@pytest.mark.parametrize("text", ["logs", "./postgres/logs", "/data//logs", "~/a:b", "postgres", "my=logs"])
def test_a_folder(text: str) -> None:
    assert log_root_of(text) == Path(text).expanduser().absolute()


@pytest.mark.parametrize("text", [
    *("mysql://u:secret@h/d", "postgresq://u:secret@h/d", "PostgreSQL://u:secret@h/d", "postgres//u:secret@h/d"),
    *("postgresql:/u:secret@h/d", "postgresql+psycopg://u:secret@h/d", "s3://secret/log"),
    *("host=h dbname=d password=secret", "dbname=secret"),
])  # fmt: skip
def test_what_is_meant_as_a_database_is_no_folder(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name would have the password, and what is written there no other machine would see."""
    monkeypatch.setenv("SCANNERY_LOG", text)
    for use in (
        lambda: log_root_of(text),
        lambda: given_log_root(""),
        lambda: ServerConfig(store="store", log=text),
        lambda: MaintainConfig(store="store", log=text),
    ):
        with pytest.raises(ConfigError) as caught:
            use()
        assert caught.value.field == "log"
        assert "secret" not in str(caught.value)
