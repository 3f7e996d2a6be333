"""Finds the bridges that are installed, and opens those that the options ask for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata

from scannery.runtime.errors import CodedError, ConfigError
from scannery.serving.bridging.api import Bridge, Companion, Plugin
from scannery.serving.bridging.bridges import Bridges, close_bridges
from scannery.serving.bridging.host import Host
from scannery.serving.config import ListenConfig

__all__ = ["GROUP", "companions", "installed", "load_bridges", "open_bridges"]

GROUP = "scannery.bridges"
"""Group of the entry points."""


@cache
def installed() -> Mapping[str, metadata.EntryPoint]:
    """Return the entry points of the bridges by name; of several with a name, the first on the path counts."""
    # `metadata.entry_points` parses those of all packages, which takes twice as long.
    entries: dict[str, metadata.EntryPoint] = {}
    for package in metadata.distributions():
        with suppress(OSError, UnicodeDecodeError):
            if f"[{GROUP}]" in (package.read_text("entry_points.txt") or ""):
                for entry in package.entry_points.select(group=GROUP):
                    entries.setdefault(entry.name, entry)
    return dict(sorted(entries.items()))


def load_bridges(config: ListenConfig) -> None:
    """Import the bridges that the options ask for; raises as `open_bridges`."""
    for name, plugin in _enabled(config):
        _loaded(name, plugin)


def companions(config: ListenConfig) -> Mapping[str, Companion]:
    """Return the companions of the bridges that the options ask for, by name; raises ConfigError."""
    return {
        name: companion for name, plugin in _enabled(config) if (companion := plugin.companion()) is not None
    }


def open_bridges(host: Host) -> Bridges:
    """Open the bridges that the options of a server ask for.

    Raises:
        ConfigError: a bridge is not installed, or cannot be imported or opened, or two take the same paths.

    """
    opened: dict[str, Bridge] = {}
    try:
        for name, plugin in _enabled(host.config):
            _loaded(name, plugin)
            opened[name] = _opened(name, plugin, host)
        return Bridges(opened)
    except BaseException:
        close_bridges(opened)
        raise


def _enabled(config: ListenConfig) -> Iterator[tuple[str, Plugin]]:
    for name, entry in _chosen(config.bridge_names).items():
        try:
            plugin = entry.load()()
            if not isinstance(plugin, Plugin):
                raise TypeError(f"{entry.value} is not a subclass of Plugin")
            enabled = plugin.wanted(config)
        except Exception as error:
            raise _failed(name, "imported", error) from error
        if enabled:
            yield name, plugin


def _chosen(names: Collection[str] | None) -> Mapping[str, metadata.EntryPoint]:
    if names is not None and not names:
        return {}  # without a look at what is installed
    entries = installed()
    if names is None:
        return entries
    for name in sorted(names):
        if name not in entries:
            there = ", ".join(entries) or "none"
            raise ConfigError(f"bridges: {name!r:.80} is not installed; installed: {there}", field="bridges")
    return {name: entry for name, entry in entries.items() if name in names}


def _loaded(name: str, plugin: Plugin) -> None:
    try:
        plugin.load()
    except Exception as error:
        raise _failed(name, "imported", error) from error


def _opened(name: str, plugin: Plugin, host: Host) -> Bridge:
    try:
        bridge = plugin.open(host)
        if not isinstance(bridge, Bridge):
            raise TypeError(f"`open` must return a Bridge, got {type(bridge).__name__}")
    except CodedError:  # says by itself what is wrong
        raise
    except Exception as error:
        raise _failed(name, "opened", error) from error
    return bridge


def _failed(name: str, done: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"bridges: {name} cannot be {done}: {type(error).__name__}: {error}; `--bridges` names those to load",
        field="bridges",
    )
