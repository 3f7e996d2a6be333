"""Run the blocks of a page of the documentation as a reader pastes them: `sh`, `python`, and `bash` with its answer."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from scannery.cli.main import main
from tests.data import ROOT
from tests.tools.ports import free_port

__all__ = ["Block", "Reader", "blocks", "commands"]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_HEREDOC = re.compile(r"<<'(\w+)'")
_PORT = re.compile(r"\b(7077|7078|7080|7443|9000|9464)\b")
_SERVERS = {"serve": "7077", "encoder": "7078"}
"""Commands that run until they are stopped, and their default ports."""


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    language: str
    """Empty for output, `text` for synopses."""
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


@dataclass
class Reader:
    """Runs blocks in the current folder; commands of Scannery in this process, servers in processes of their own.

    A server with `&` runs until `close`. One without is stopped as soon as it serves, and must end with status 0.
    """

    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch | None = None
    """For pages that export variables."""
    ports: dict[str, str] = field(default_factory=dict)
    """Free ports in place of those of the page."""
    outputs: dict[str, str] = field(default_factory=dict)
    """What commands printed."""
    servers: list[subprocess.Popen[str]] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=dict)
    """Variables of the Python blocks."""
    answer: str = ""
    """What the last `bash` block printed."""

    def run(self, block: Block) -> None:
        """Run a block; AssertionError if a command fails, or if a `json` block is not in the answer before it."""
        text = self._with_ports(block.text)
        if block.language == "python":
            exec(compile(text, "page", "exec"), self.names)
        elif block.language == "sh":
            for command in commands(text):
                self.run_command(command)
        elif block.language == "bash":
            self.answer = _bash(text)
        elif block.language == "json":
            _holds(json.loads(self.answer), json.loads(block.text))

    def _with_ports(self, text: str) -> str:
        return _PORT.sub(lambda found: self._port(found[1]), text)

    def _port(self, usual: str) -> str:
        if usual not in self.ports:
            self.ports[usual] = str(free_port())
        return self.ports[usual]

    def run_command(self, command: str) -> None:
        """Run one command."""
        if command.startswith("export "):
            self._export(command)
        elif command.startswith("scannery "):
            self._run_scannery(command)
        else:
            _bash(command)

    def _export(self, command: str) -> None:
        assert self.monkeypatch is not None
        for name in re.findall(r"(\w+)=", command):
            self.monkeypatch.setenv(name, _bash(f"{command}; printenv {name}").rstrip("\n"))

    def _run_scannery(self, command: str) -> None:
        words = shlex.split(os.path.expandvars(command), comments=True)[1:]
        if words[0] in _SERVERS:
            self._serve(words)
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
        stays = words[-1] == "&"
        words = words[:-1] if stays else words
        if "--listen" not in words:
            words = [*words, "--listen", f"127.0.0.1:{self._port(_SERVERS[words[0]])}"]
        server = subprocess.Popen(
            [str(Path(sys.executable).parent / "scannery"), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.servers.append(server)
        said = _until_serving(server)
        if not stays:
            server.terminate()
            said += server.communicate(timeout=60)[0]
            assert server.returncode == 0, said
        self.outputs[shlex.join(words)] = said

    def close(self) -> None:
        """Stop servers, and close clients that the page has left open."""
        for value in self.names.values():
            if hasattr(value, "close"):
                value.close()
        for server in self.servers:
            server.terminate()
        for server in self.servers:
            server.communicate(timeout=60)


def _until_serving(server: subprocess.Popen[str]) -> str:
    said = ""
    assert server.stdout is not None
    for line in server.stdout:
        said += line
        if line.startswith("Serving on"):
            return said
    raise AssertionError(f"the server ended: {said}")


def _bash(text: str) -> str:
    # `python` is this one.
    paths = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", text],
        env={**os.environ, "PATH": paths},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, f"{text}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def _holds(found: Any, wanted: Any) -> None:
    """Check that everything that is wanted is there."""
    if isinstance(wanted, dict):
        assert wanted.keys() <= found.keys()
        for key, value in wanted.items():
            _holds(found[key], value)
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            _holds(one, other)
    else:
        assert found == wanted
