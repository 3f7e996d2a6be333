"""Generates each `_sync` folder of the client from its `_async` one: `python -m tests.tools.generate_sync client`.

Names say what becomes of them: `AsyncX` becomes `X`, `async_x` becomes `x`, `x_async` becomes `x_sync`, modules too.
What differs for threads is written by hand under both names: client/async_concurrency.py and client/concurrency.py, the
connections of HTTP, the channels of gRPC.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

__all__ = ["generate"]

ROOT = Path(__file__).parents[2]
NOTE = "# Generated from `_async` by tests/tools/generate_sync.py: edit that one, then `make sync`.\n"
RULES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"\basync (def|with|for)\b", r"\1"),
        (r"\bawait ", ""),
        (r"\b__a(enter|exit|iter|next)__", r"__\1__"),
        (r"\b(Stop)?Async(?=[A-Z])", r"\1"),
        (r"\basync_(?=\w)", ""),
        (r"_async\b", "_sync"),
        (r"\basynchronous client\b", "synchronous client"),
        (r"\bfor coroutines\b", "for threads"),
    ]
]


def generate(client: Path, output: Path) -> list[Path]:
    """Write the generated modules of the client's folder under `output`, and return their paths."""
    written = []
    for source in sorted(client.glob("**/_async/*.py")):
        path = output / source.relative_to(client).parent.with_name("_sync") / source.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_formatted(NOTE + _synchronous(source.read_text())))
        written.append(path)
    return written


def _synchronous(text: str) -> str:
    for pattern, replacement in RULES:
        text = pattern.sub(replacement, text)
    return text


def _formatted(text: str) -> str:
    for command in (["check", "--quiet", "--select", "I,F401", "--fix-only"], ["format"]):
        done = subprocess.run(
            [
                sys.executable, "-m", "ruff", *command, "--stdin-filename", str(ROOT / "client/_sync/x.py"), "-",
            ],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )  # fmt: skip
        text = done.stdout
    return text


if __name__ == "__main__":
    for path in generate(Path(sys.argv[1]), Path(sys.argv[1])):
        print(path)
