"""Generates src/scannery/v1 and src/scannery/vertex/v* from proto/: `python -m tests.tools.generate_protos src`.

`protoc -I proto` with the path of each file equal to its package makes the imports right without rewriting them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

__all__ = ["generate"]

ROOT = Path(__file__).parents[2]
PROTOS = ROOT / "proto"
PACKAGE = "scannery/v1"
FOREIGN_PACKAGES = tuple(
    sorted(path.relative_to(PROTOS).as_posix() for path in (PROTOS / "scannery" / "vertex").glob("v*"))
)
"""Messages for other people's clients. Their services have other people's names, so that no stubs are made."""


def generate(output: Path) -> list[Path]:
    """Write the generated modules and stubs under `output`, and return their paths."""
    _protoc(output, PACKAGE, "python", "grpc_python", "mypy", "mypy_grpc")
    for package in FOREIGN_PACKAGES:
        _protoc(output, package, "python", "mypy")
    # types.proto has no service: an empty module would only be noise.
    for empty in (output / PACKAGE).glob("types_pb2_grpc.*"):
        empty.unlink()
    return sorted(
        path for package in (PACKAGE, *FOREIGN_PACKAGES) for path in (output / package).glob("*_pb2*.py*")
    )


def _protoc(output: Path, package: str, *plugins: str) -> None:
    sources = [path.relative_to(PROTOS).as_posix() for path in sorted((PROTOS / package).glob("*.proto"))]
    # protoc finds its plug-ins (mypy-protobuf) on the path; they are installed beside this Python.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    status = protoc.main(
        [
            "protoc",
            f"-I{PROTOS}",
            f"-I{Path(grpc_tools.__file__).parent / '_proto'}",
            *(f"--{plugin}_out={output}" for plugin in plugins),
            *sources,
        ]
    )
    if status != 0:
        raise RuntimeError(f"protoc failed with status {status}")


if __name__ == "__main__":
    for path in generate(Path(sys.argv[1])):
        print(path)
