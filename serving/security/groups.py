"""Groups of callers: a table beside the keys, so that a change of rights changes no key and no row.

The file is JSON: names of callers, as `scannery keys whoami` tells them, each with a list of its groups. A server looks
at it twice a second.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from scannery.runtime.errors import ConfigError
from scannery.serving.security.access import Access
from scannery.serving.security.principal import Principal
from scannery.serving.security.private_files import read_private

__all__ = ["MAX_GROUPS", "GroupTable", "Groups"]

MAX_GROUPS = 1000
"""Limit of the groups of a caller: each is a value in the filter of all of its requests."""

Groups = Mapping[str, frozenset[str]]


class GroupTable:
    """The groups of callers by name. Immutable."""

    def __init__(self, groups: Groups) -> None:
        """Keep them; callers that are not among them are in no group."""
        self._groups = groups
        self._filled: dict[tuple[str, tuple[Access, ...]], tuple[Access, ...]] = {}

    @classmethod
    def read(cls, path: str) -> GroupTable:
        """Return the table of a file; ConfigError if it is not one."""
        data = read_private(path, "groups_file")
        try:
            table = json.loads(data)
            valid = isinstance(table, dict) and all(map(_is_list_of_names, table.values()))
        except (ValueError, RecursionError):
            valid = False
        if not valid:
            raise ConfigError(
                f"groups_file: {path} must have names of callers, each with a list of at most {MAX_GROUPS} groups",
                field="groups_file",
            )
        return cls({name: frozenset(groups) for name, groups in table.items()})

    def filled(self, principal: Principal) -> Principal:
        """Return a caller with its groups in its filters."""
        if not any(entry.names_groups for entry in principal.access):
            return principal
        key = principal.name, principal.access
        access = self._filled.get(key)
        if access is None:
            groups = self._groups.get(principal.name, frozenset())
            access = tuple(
                entry.with_groups(groups) if entry.names_groups else entry for entry in principal.access
            )
            if len(self._filled) >= _MAX_FILLED:
                self._filled.clear()
            self._filled[key] = access
        return replace(principal, access=access)


_MAX_FILLED = 4096


def _is_list_of_names(groups: object) -> bool:
    return (
        isinstance(groups, list)
        and len(groups) <= MAX_GROUPS
        and all(isinstance(name, str) for name in groups)
    )
