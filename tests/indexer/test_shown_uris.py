"""What messages show of URIs that may have a password or a key."""

from __future__ import annotations

import pytest

from scannery.indexer import Store
from scannery.indexer.errors import StoreUriError
from scannery.indexer.store.object_store import without_credentials


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:se%cret@host:5/db", "postgresql://host:5/db"),
        ("postgresql://u:se@cret@host/db?sslpassword=secret", "postgresql://host/db"),
        ("postgresql://u:se/cret@host/db", "postgresql://host/db"),
        ("host=h password=secret", "(not shown: it may have a password)"),
        ("s3://bucket/folder", "s3://bucket/folder"),
        ("./store", "./store"),
    ],
)
def test_no_part_of_credentials_is_shown(text: str, shown: str) -> None:
    assert without_credentials(text) == shown


@pytest.mark.parametrize(
    "uri",
    [
        "s3://KEY:secret@bucket/x",
        "s3://KEY:sec/ret@bucket/x",
        "gs://bucket/x?token=secret",
        "az://account:secret@container/x",
        "http://user:secret@host/x",
        "s4://user:se/cret@host/x",
    ],
)
def test_a_store_with_credentials_in_its_uri_is_refused_without_showing_them(uri: str) -> None:
    with pytest.raises(StoreUriError) as refused:
        Store.open(uri)
    for part in ("secret", "sec", "KEY", "user"):
        assert part not in str(refused.value).replace("AWS_ACCESS_KEY_ID", "")
