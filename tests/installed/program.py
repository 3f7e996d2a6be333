"""Commands in an environment, as a stranger types them."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["Environment"]

TIMEOUT_S = 300.0


class Environment:
    """Runs commands with the programs of an environment, in a folder, with nothing else of this process."""

    def __init__(self, bin: Path, folder: Path, cache: Path | None = None) -> None:
        """Run nothing yet.

        Args:
            bin: programs of the environment.
            folder: where commands run.
            cache: where models are kept as they load quickly; None: in the folder.

        """
        self.folder = folder
        self._variables = {
            "PATH": f"{bin}:/usr/bin:/bin",
            "HOME": str(folder),
            "PYTHONNOUSERSITE": "1",
            "HAYSTACK_TELEMETRY_ENABLED": "False",
            "SCANNERY_CACHE_DIR": str(cache or folder / "cache"),
        }
        self._servers: list[subprocess.Popen[str]] = []

    def run(self, command: str, *, tries: int = 1) -> str:
        """Run commands of a shell, and return what they print; AssertionError if one fails.

        They run again if a call passed its deadline: on a busy machine, loading a model takes so long.
        """
        done = subprocess.run(
            ["bash", "-euc", command],
            cwd=self.folder,
            env=self._variables,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if tries > 1 and done.returncode and "DeadlineExceededError" in done.stderr:
            return self.run(command, tries=tries - 1)
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def serve(self, command: str) -> None:
        """Start a server, and wait until it serves; `close` stops it."""
        server = subprocess.Popen(
            ["bash", "-euc", f"exec {command}"],
            cwd=self.folder,
            env=self._variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._servers.append(server)
        said = ""
        assert server.stdout is not None
        for line in server.stdout:
            said += line
            if line.startswith("Serving on"):
                return
        raise AssertionError(f"{command}: it ended:\n{said}")

    def close(self) -> None:
        """Stop the servers."""
        for server in self._servers:
            server.terminate()
        for server in self._servers:
            server.communicate(timeout=60)
