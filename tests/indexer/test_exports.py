"""The names of the room, which are imported when one of them is first used."""

from __future__ import annotations

import pytest

import scannery.indexer
from scannery.indexer import exports


def test_the_room_has_the_names_that_it_exports() -> None:
    names: dict[str, object] = {}
    exec("from scannery.indexer import *", names)
    assert names.keys() - {"__builtins__"} == set(exports.__all__) <= set(dir(scannery.indexer))


def test_a_name_that_it_does_not_have_is_none_of_the_room() -> None:
    with pytest.raises(
        AttributeError, match=r"^module 'scannery\.indexer' has no attribute 'import_module_'"
    ):
        scannery.indexer.import_module_  # noqa: B018
