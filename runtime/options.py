"""Options, declared once: the field of a configuration tells the flag of a command, its help, and the allowed range.

    drain_s: float = option(10.0, "Time for running requests to finish after a stop.", "--drain", most=3600)

`scannery.cli.declared_options` makes flags of these fields, and a configuration of the values of flags.
"""

from __future__ import annotations

import math
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar

from scannery.runtime.errors import ConfigError

__all__ = ["Option", "check_ranges", "declared_options", "option"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Option:
    """What a field of a configuration is besides its name, type and default. Without help it has no flag."""

    help: str
    flag: str
    """Names of the flag, as `--name -n`; empty: that of the field."""
    metavar: str | None
    panel: str | None
    """Heading in the help of a command."""
    unit: int
    """What the value of the flag is multiplied by."""
    minimum: float
    maximum: float


def option(
    default: T,
    help: str = "",
    flag: str = "",
    *,
    metavar: str | None = None,
    panel: str | None = None,
    unit: int = 1,
    minimum: float = 0,
    maximum: float = math.inf,
) -> T:
    """Return a dataclass field with this default that is an option; see `Option` for the others."""
    declared = Option(help, flag, metavar, panel, unit, minimum, maximum)
    return field(default=default, metadata={"option": declared})


def declared_options(config: type) -> dict[str, tuple[Field[Any], Option]]:
    """Return the options of a dataclass by the names of their fields; a subclass may have another default."""
    options = dict[str, tuple[Field[Any], Option]]()
    for its in fields(config):
        for base in config.__mro__:
            inherited = vars(base).get("__dataclass_fields__", {}).get(its.name)
            if inherited is not None and "option" in inherited.metadata:
                options[its.name] = its, inherited.metadata["option"]
                break
    return options


def check_ranges(config: Any) -> None:
    """Check the numbers of a configuration.

    Raises:
        ConfigError: one is out of the range of its option.

    """
    for name, (_, declared) in declared_options(type(config)).items():
        value = getattr(config, name)
        if isinstance(value, (int, float)) and not declared.minimum <= value <= declared.maximum:
            raise ConfigError(
                f"{name}: must be {declared.minimum} to {declared.maximum}, got {value}", field=name
            )
