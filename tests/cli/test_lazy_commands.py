"""Commands are imported when they run, and listed as if they had been imported."""

from __future__ import annotations

import pytest
import typer

from scannery.cli.main import app, main
from tests.startup import imported_modules


@pytest.mark.system
def test_help_and_version_import_no_package_that_a_command_needs() -> None:
    heavy = {
        "numpy", "pyarrow", "pydantic", "grpc", "google.protobuf", "torch", "apache_beam", "numba", "scann",
    }  # fmt: skip
    loaded = imported_modules("from scannery.cli.main import main; main(['--help'])")
    assert not loaded & heavy
    assert not {name for name in loaded if name.startswith(("scannery.cli.commands", "scannery.client"))}


def test_the_list_of_commands_says_what_each_command_says_of_itself() -> None:
    group = typer.main.get_command(app)
    listed = {name: group.get_command(None, name).help for name in group.list_commands(None)}  # type: ignore[attr-defined]
    assert len(listed) > 12
    commands = group.commands  # type: ignore[attr-defined]
    assert listed == {name: (command.help or "").splitlines()[0] for name, command in commands.items()}
    assert all(command.name == name for name, command in commands.items())


def test_a_command_without_arguments_prints_its_help(capsys) -> None:
    assert main(["search"]) == 2
    assert "Search an index by text" in capsys.readouterr().out


def test_an_unknown_command_is_answered_with_the_nearest(capsys) -> None:
    assert main(["serch"]) == 2
    assert "Did you mean 'search'" in capsys.readouterr().err
