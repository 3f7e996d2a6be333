"""Options that are declared as fields of a configuration, as flags of a command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from scannery.cli.declared_options import configured, with_options
from scannery.runtime.errors import ConfigError
from scannery.runtime.options import check_ranges, option
from tests.startup import imported_modules


@dataclass(frozen=True, kw_only=True)
class Base:
    place: str = option("here", "Where.", "--at -a", metavar="PLACE")
    size: int = option(2048, "How much.", metavar="KIB", unit=1024, maximum=1 << 20)
    names: tuple[str, ...] = option((), "Which.", "--name")
    fast: bool = option(True, "Whether at once.")
    quiet: bool = option(False, "Whether in silence.")
    queue: int = option(5, minimum=1, maximum=9)
    """Of programs only: without help there is no flag."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class Derived(Base):
    place: str = "there"
    share: float = option(0.5, "A part.", maximum=1)


def run(*arguments: str) -> Any:
    made = list[Derived]()

    @with_options("share at size name fast quiet again", Derived)
    def command(again: bool = False, **given: Any) -> None:
        made.append(configured(Derived, given, queue=7 if again else 5))

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(command)
    result = CliRunner().invoke(app, list(arguments))
    return made[0] if made else result.exception or result


def test_flags_have_the_names_and_defaults_of_the_fields() -> None:
    assert run() == Derived(place="there", size=2048)
    flags = (
        "-a", "x", "--size", "3", "--name", "p", "--name", "q", "--no-fast", "--quiet", "--share", "1", "--again",
    )  # fmt: skip
    expected = Derived(place="x", size=3072, names=("p", "q"), fast=False, quiet=True, share=1.0, queue=7)
    assert run(*flags) == expected


def test_help_has_the_order_of_the_command() -> None:
    text = run("--help").output
    flags = ("--share", "--at", "--size KIB", "--name", "--no-fast", "--quiet", "--again")
    assert sorted(flags, key=text.index) == list(flags)
    assert "--no-quiet" not in text
    assert "--queue" not in text


@pytest.mark.parametrize("flags", [("--share", "1.5"), ("--size", "1025")])
def test_values_outside_of_the_range_are_refused(flags: tuple[str, str]) -> None:
    error = run(*flags)
    assert isinstance(error, ConfigError)
    assert error.field == flags[0][2:]


@pytest.mark.system
def test_the_options_of_servers_are_read_without_the_engine() -> None:
    loaded = imported_modules("import scannery.serving.config")
    assert not {"numpy", "pyarrow", "grpc", "pydantic"} & loaded
