"""Writes what others rely on, tests/contracts/*.txt and tests/proto/contract.txt: `make contracts`.

Each file is a listing that is read as a diff: a line that changes or goes away is a change for users.
"""

from __future__ import annotations

import ast
import errno
import inspect
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from importlib import import_module
from typing import Any

import grpc
import typer

import scannery
import scannery.testing
from tests.data import ROOT
from tests.proto.test_compatibility import CONTRACT, contract, lines_of

__all__ = ["CONTRACTS", "FOLDER", "record", "text_of"]

FOLDER = ROOT / "tests" / "contracts"
WIDTH = 100
ROOMS = ("bridges", "cli", "client", "embed", "indexer", "live", "pipelines", "runtime", "serving")
ERRORS = (
    "client.errors", "embed.errors", "indexer.errors", "live.log.mutation_log", "pipelines.errors", "runtime.errors",
)  # fmt: skip
MEMBERS = re.compile(r"__(a?enter|a?exit|a?iter|a?next|await|call|contains|getitem|init|len)__|[^_].*")
"""Names of members that callers use."""


def commands() -> Iterator[str]:
    """Yield the help of every command, without the boxes that the terminal's one is drawn with."""
    from scannery.cli.main import app

    command: Any = typer.main.get_command(app)
    pages = [command.context_class(command, info_name="scannery", terminal_width=WIDTH)]
    while pages:
        page = pages.pop(0)
        page.command.rich_markup_mode = None
        yield f"\n$ {page.command_path} --help"
        yield from (line.rstrip() for line in page.get_help().splitlines())
        pages[:0] = [
            type(page)(child, info_name=name, parent=page, terminal_width=WIDTH)
            for name, child in getattr(page.command, "commands", {}).items()
        ]


def leaf() -> Iterator[str]:
    """Yield the calls between the processes of a cluster, which servers of two releases make during a roll-out."""
    from scannery.v1 import leaf_pb2

    yield from sorted(lines_of(leaf_pb2.DESCRIPTOR))


class _Text(str):
    """An annotation that is shown without the quotes of one that was not evaluated, and without modules of ours."""

    __slots__ = ()

    def __new__(cls, annotation: Any) -> _Text:
        text = getattr(annotation, "__forward_arg__", annotation)
        text = text if isinstance(text, str) else inspect.formatannotation(text)
        return super().__new__(cls, re.sub(r"\bscannery(\.\w+)*\.(?=\w)", "", text))

    __repr__ = str.__str__


def python() -> Iterator[str]:
    """Yield the public names of the SDK, with signatures, methods and fields, whatever module defines them."""
    modules = {"scannery": scannery, "scannery.client": scannery.client, "scannery.aio": scannery.aio}
    modules["scannery.testing"] = scannery.testing
    public = [getattr(module, name) for module in modules.values() for name in module.__all__]
    described = list[Any]()
    for title, module in modules.items():
        yield f"\n{title}: {', '.join(sorted(module.__all__))}"
        for name in sorted(set(module.__all__) - {"__version__", "aio"}):
            value = getattr(module, name)
            if not any(value is other for other in described):
                described.append(value)
                if isinstance(value, type):
                    yield from _class(name, value, public)
                else:
                    yield from (
                        _signature(name, value) if inspect.isfunction(value) else [f"{name} = {_Text(value)}"]
                    )


def _class(name: str, value: type, public: Sequence[Any]) -> Iterator[str]:
    """Yield a class with its public bases, and the fields and methods that it does not have from these."""
    own = [
        owner
        for owner in value.__mro__
        if owner.__module__.startswith("scannery.")
        # What a public base has is shown there, with what that inherits from bases of ours that are not public.
        and not any(base in public and issubclass(base, owner) for base in value.__mro__[1:])
    ]
    bases = dict.fromkeys(base for owner in own for base in owner.__bases__ if base not in [object, *own])
    yield f"class {name}({', '.join(base.__name__ for base in bases)})"
    for owner in own:
        for field, annotation in inspect.get_annotations(owner).items():
            if not field.startswith("_"):
                yield f"    .{field}: {_Text(annotation)}"
    members: Sequence[Any] = inspect.classify_class_attrs(value)
    for member in members:
        if member.defining_class in own and MEMBERS.fullmatch(member.name):
            if member.kind == "property":
                yield f"    .{member.name}: {_Text(inspect.signature(member.object.fget).return_annotation)}, read only"
            elif member.kind != "data":
                kind = "" if member.kind == "method" else f"{member.kind} "
                yield from _signature(f"    {kind}.{member.name}", getattr(value, member.name))


def _signature(name: str, function: Callable[..., object]) -> Iterator[str]:
    """Yield the signature, with a line for each parameter if it is long."""
    signature = inspect.signature(function)
    texts, kind = list[str](), None
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY is not kind:
            texts.append("*")
        kind = parameter.kind
        is_annotated = parameter.annotation is not parameter.empty
        texts.append(
            str(parameter.replace(annotation=_Text(parameter.annotation)) if is_annotated else parameter)
        )
    result = _Text(signature.return_annotation)
    if len(line := f"{name}({', '.join(texts)}) -> {result}") <= WIDTH:
        yield line
    else:
        indent = " " * (len(name) - len(name.lstrip()))
        yield from (f"{name}(", *(f"{indent}    {text}," for text in texts), f"{indent}) -> {result}")


def metrics() -> Iterator[str]:
    """Yield the metrics of a server and of `scannery maintain`."""
    from scannery.indexer import Store
    from scannery.live.log.location import log_root_of
    from scannery.serving import MaintainConfig
    from scannery.serving.process.maintain import _Maintainer
    from scannery.serving.telemetry.metrics import Registry, ServerMetrics

    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(folder, create=True)
        root = log_root_of(folder)
        assert root is not None
        maintainer = _Maintainer(store, root, MaintainConfig(store=folder))
        with closing(maintainer._catalog):
            maintain = Registry(maintainer._families)
    for program, registry in (("serve", ServerMetrics().registry), ("maintain", maintain)):
        yield f"\n$ scannery {program} --metrics-listen ADDRESS"
        for family in sorted(registry.families, key=lambda family: family.name):
            yield f"{family.name}{{{','.join(family.labels)}}} {family.kind}: {family.text}"
            if buckets := getattr(family, "buckets", None):
                yield f"    le: {' '.join(f'{bucket:g}' for bucket in buckets)}"


def errors() -> Iterator[str]:
    """Yield the exit code, the gRPC status and the HTTP status of each error, and the SDK's error of each status."""
    from scannery.cli.errors import BUILTIN, exit_code
    from scannery.client.transport.retries import error_from_status
    from scannery.runtime.errors import CodedError
    from scannery.serving.status import status_of
    from scannery.serving.transport.http.connect import HTTP_STATUS

    kinds = [
        (name.partition(".")[0] + ".", kind)
        for name in ERRORS
        for kind in vars(import_module(f"scannery.{name}")).values()
        if isinstance(kind, type) and issubclass(kind, Exception) and kind.__module__.endswith(name)
        if kind is not CodedError
    ]
    kinds += [("", kind) for kind in (*BUILTIN, Exception, MemoryError)]
    for room, kind in sorted(kinds, key=lambda item: (item[0], item[1].__name__)):
        error: Any = kind.__new__(kind)  # some need arguments, and the tables look at the class
        error.message, error.field, error.retry_after_s = "", None, None
        line = f"{room}{kind.__name__}: exit {exit_code(error)}"
        code = status_of(error)[0]
        yield line if room == "client." else f"{line}, {code.name}, {HTTP_STATUS[code]}"
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO):
        yield f"OSError, {errno.errorcode[number]}: exit {exit_code(OSError(number, ''))}"
    yield ""
    for code in grpc.StatusCode:
        if code is not grpc.StatusCode.OK:
            received = type(error_from_status(code.name, "", None)).__name__
            yield f"{code.name}, {HTTP_STATUS[code]}: {received}"


def environment() -> Iterator[str]:
    """Yield the environment variables of the product's own, which the code names in full, by its syntax trees."""
    names = set[str]()
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            if "SCANNERY_" in (text := path.read_text()):
                strings = (
                    str(node.value) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)
                )
                names |= {value for value in strings if re.fullmatch(r"SCANNERY_[A-Z0-9_]*", value)}
    yield from sorted(names)


CONTRACTS: dict[str, Callable[[], Iterator[str]]] = {
    listing.__name__: listing for listing in (commands, environment, errors, leaf, metrics, python)
}
"""Listings by the names of their files."""


def text_of(name: str) -> str:
    """Return what the file of a listing has to hold."""
    return "\n".join(CONTRACTS[name]()).lstrip("\n") + "\n"


def record() -> None:
    """Write all listings. What is missing in the public wire contract stays there: it only grows."""
    for name in CONTRACTS:
        (FOLDER / f"{name}.txt").write_text(text_of(name))
    CONTRACT.write_text("\n".join(sorted({*CONTRACT.read_text().splitlines(), *contract()})) + "\n")


if __name__ == "__main__":
    record()
