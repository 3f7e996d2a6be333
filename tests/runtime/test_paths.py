"""A process may go to another folder: what was named by a relative path stays what it was."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import scannery
from scannery.client.transport.credentials import Credentials
from scannery.indexer import Store
from scannery.live.log.location import log_folder
from scannery.runtime.paths import placed_model
from scannery.serving.catalog.roles import embedded_catalog
from scannery.serving.config import EncoderConfig, RemoteConfig, ServerConfig
from scannery.serving.security import SecurityConfig
from tests.served import copied


@pytest.fixture
def here(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a store `library`, and a folder `elsewhere`."""
    copied(library, tmp_path).rename(tmp_path / "library")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_store_is_opened_again_from_any_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("library", "./library", "elsewhere/../library", Path("library")):
        assert Path(Store.open(name).uri).samefile(here / "library")
        assert Path(Store.open(name).uri).is_absolute()
    assert Store.open("s3://bucket/prefix/").uri == "s3://bucket/prefix"
    client = scannery.connect("./library")
    monkeypatch.chdir("elsewhere")
    with client, pickle.loads(pickle.dumps(client)) as another:
        assert [info.name for info in another.indexes()] == [info.name for info in client.indexes()]


def test_the_log_stays_where_it_was(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = embedded_catalog(Store.open("library"), log=Path("logs"))
    monkeypatch.chdir("elsewhere")
    root = catalog._opener.log_root
    assert isinstance(root, Path)
    assert log_folder(root, "library") == here / "logs" / "library" / "log"


def test_options_are_absolute_from_the_start(here: Path) -> None:
    file = str(here / "file")
    config = ServerConfig(
        store="library",
        log="logs",
        security=SecurityConfig(keys_file="file", tls_cert="file", tls_key="file", client_ca="file"),
        encoder=RemoteConfig(address="127.0.0.1:1", key_file="file", ca="file"),
    )
    assert (config.store, config.log) == (str(here / "library"), str(here / "logs"))
    security, remote = config.security, config.encoder
    assert [security.keys_file, security.tls_cert, security.tls_key, security.client_ca] == [file] * 4
    assert remote is not None
    assert [remote.key_file, remote.ca] == [file] * 2
    assert EncoderConfig(store="library").store == str(here / "library")
    assert ServerConfig(store="gs://bucket/store").store == "gs://bucket/store"
    credentials = Credentials(ca="file", cert="file", key="file")
    assert [credentials.ca, credentials.cert, credentials.key] == [here / "file"] * 3


def test_models_are_found_from_where_they_were_named(here: Path) -> None:
    assert placed_model("elsewhere", here) == str(here / "elsewhere")
    assert placed_model("./gone", here) == str(here / "gone")
    assert (
        placed_model("sentence-transformers/all-MiniLM-L6-v2", here)
        == "sentence-transformers/all-MiniLM-L6-v2"
    )
