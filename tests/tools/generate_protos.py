"""Generates src/scannery/v1 from proto/: `python -m tests.tools.generate_protos src`.

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


def generate(output: Path) -> list[Path]:
    """Write the generated modules and stubs under `output`, and return their paths."""
    sources = [path.relative_to(PROTOS).as_posix() for path in sorted((PROTOS / PACKAGE).glob("*.proto"))]
    # protoc finds its plug-ins (mypy-protobuf) on the path; they are installed beside this Python.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    status = protoc.main(
        [
            "protoc",
            f"-I{PROTOS}",
            f"-I{Path(grpc_tools.__file__).parent / '_proto'}",
            f"--python_out={output}",
            f"--grpc_python_out={output}",
            f"--mypy_out={output}",
            f"--mypy_grpc_out={output}",
            *sources,
        ]
    )
    if status != 0:
        raise RuntimeError(f"protoc failed with status {status}")
    # types.proto has no service: an empty module would only be noise.
    for empty in (output / PACKAGE).glob("types_pb2_grpc.*"):
        empty.unlink()
    return sorted((output / PACKAGE).glob("*_pb2*.py*"))


if __name__ == "__main__":
    for path in generate(Path(sys.argv[1])):
        print(path)
