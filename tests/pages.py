"""Run the blocks of a page of the documentation as a reader pastes them: `sh` and `python`, one after the other."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from scannery.cli.main import main
from tests.data import ROOT

__all__ = ["Block", "Reader", "blocks", "commands"]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_HEREDOC = re.compile(r"<<'(\w+)'")


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    language: str
    """Empty for output and synopses."""
    text: str


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page, by its path in the repository."""
    return [Block(*found) for found in _FENCE.findall((ROOT / page).read_text())]


def commands(text: str) -> list[str]:
    """Return the commands of a block: a line each, with its continuations and here-documents."""
    found: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        command = line
        while command.endswith("\\"):
            command = command[:-1] + next(lines)
        if heredoc := _HEREDOC.search(command):
            for inner in lines:
                command += f"\n{inner}"
                if inner == heredoc[1]:
                    break
        if command.strip():
            found.append(command)
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Reader:
    """Runs blocks in the current folder; commands of Scannery in this process, servers in processes of their own."""

    capsys: pytest.CaptureFixture[str]
    port: int = field(default_factory=_free_port)
    """In place of 7077."""
    outputs: dict[str, str] = field(default_factory=dict)
    """What commands printed."""
    servers: list[subprocess.Popen[str]] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=dict)
    """Variables of the Python blocks."""

    def run(self, block: Block) -> None:
        """Run a block; AssertionError if a command fails."""
        text = block.text.replace("7077", str(self.port))
        if block.language == "python":
            exec(compile(text, "page", "exec"), self.names)
        elif block.language == "sh":
            for command in commands(text):
                self.run_command(command)

    def run_command(self, command: str) -> None:
        """Run one command."""
        if not command.startswith("scannery "):
            subprocess.run(["bash", "-euc", command], check=True, stdout=subprocess.DEVNULL)
            return
        words = shlex.split(command, comments=True)[1:]
        if words[-1] == "&":
            self._serve(words[:-1])
            return
        may_fail = words[-2:] == ["||", "true"]
        words = words[:-2] if may_fail else words
        target = Path(words[-1]) if words[-2] == ">" else None
        self.capsys.readouterr()
        status = main(words[:-2] if target else words)
        captured = self.capsys.readouterr()
        assert status == 0 or may_fail, f"{command}: {status}\n{captured.out}{captured.err}"
        self.outputs[command] = captured.out + captured.err
        if target:
            target.write_text(captured.out)

    def _serve(self, words: list[str]) -> None:
        scannery = str(Path(sys.executable).parent / "scannery")
        server = subprocess.Popen(
            [scannery, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.servers.append(server)
        assert server.stdout is not None
        line = ""
        for line in server.stdout:
            if line.startswith("Serving on"):
                return
        raise AssertionError(f"the server ended: {line}")

    def close(self) -> None:
        """Stop servers, and close clients that the page has left open."""
        for value in self.names.values():
            if hasattr(value, "close"):
                value.close()
        for server in self.servers:
            server.terminate()
            server.communicate(timeout=60)
