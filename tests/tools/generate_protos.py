"""Generates src/scannery/v1 and src/scannery/vertex/v* from proto/: `python -m tests.tools.generate_protos src`.

Generated code has no comments, so those of the contract go into a file beside it, for descriptions in other formats.

`protoc -I proto` with the path of each file equal to its package makes the imports right without rewriting them.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import grpc_tools
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

__all__ = ["COMMENTS", "generate"]

ROOT = Path(__file__).parents[2]
PROTOS = ROOT / "proto"
PACKAGE = "scannery/v1"
COMMENTS = f"{PACKAGE}/comments.json"
"""The comments of PACKAGE, by the full name of what each is about."""
FOREIGN_PACKAGES = tuple(
    sorted(path.relative_to(PROTOS).as_posix() for path in (PROTOS / "scannery" / "vertex").glob("v*"))
)
"""Messages for other people's clients. Their services have other people's names, so that no stubs are made."""


def generate(output: Path) -> list[Path]:
    """Write the generated modules and stubs under `output`, and return their paths."""
    _protoc(output, PACKAGE, "python", "grpc_python", "mypy", "mypy_grpc")
    text = json.dumps(_comments(), indent=0, ensure_ascii=False, sort_keys=True)
    (output / COMMENTS).write_text(f"{text}\n")
    for package in FOREIGN_PACKAGES:
        _protoc(output, package, "python", "mypy")
    # types.proto has no service: an empty module would only be noise.
    for empty in (output / PACKAGE).glob("types_pb2_grpc.*"):
        empty.unlink()
    return sorted(
        path for package in (PACKAGE, *FOREIGN_PACKAGES) for path in (output / package).glob("*_pb2*.py*")
    )


def _comments() -> dict[str, str]:
    with tempfile.NamedTemporaryFile() as file:
        _run(PACKAGE, f"--descriptor_set_out={file.name}", "--include_source_info")
        files = FileDescriptorSet.FromString(file.read()).file
    comments: dict[str, str] = {}
    for proto in files:
        for location in proto.source_code_info.location:
            text = " ".join(location.leading_comments.split())
            if text and location.path and (name := _name_at(proto, location.path)):
                comments[f"{proto.package}.{name}"] = text
    return comments


def _name_at(proto: FileDescriptorProto, path: Sequence[int]) -> str:
    """Return the name of what is at a path of field numbers and positions; empty: it has none."""
    at, names = proto, []
    for number, position in zip(path[::2], path[1::2], strict=False):
        at = getattr(at, at.DESCRIPTOR.fields_by_number[number].name)[position]
        names.append(at.name)
    return ".".join(names)


def _protoc(output: Path, package: str, *plugins: str) -> None:
    _run(package, *(f"--{plugin}_out={output}" for plugin in plugins))


def _run(package: str, *options: str) -> None:
    sources = [path.relative_to(PROTOS).as_posix() for path in sorted((PROTOS / package).glob("*.proto"))]
    # protoc finds its plug-ins (mypy-protobuf) on the path; they are installed beside this Python.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    status = protoc.main(
        ["protoc", f"-I{PROTOS}", f"-I{Path(grpc_tools.__file__).parent / '_proto'}", *options, *sources]
    )
    if status != 0:
        raise RuntimeError(f"protoc failed with status {status}")


if __name__ == "__main__":
    for path in generate(Path(sys.argv[1])):
        print(path)
