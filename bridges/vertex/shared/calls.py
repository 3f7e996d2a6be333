"""Methods of other people's services, and their registration under the paths of several versions of an API.

Fields that are not in our messages are refused: to ignore them would give another answer than the one asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any as AnyType
from typing import TypeVar

from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from scannery.runtime.errors import UnsupportedError
from scannery.serving.bridging import Deadline, Scope, UnaryMethod

__all__ = ["Call", "ForeignMethod", "registered", "type_url"]


def check_known(request: Message) -> None:
    """Raise UnsupportedError if a request, or a message in it, has fields that are not known here."""
    size = request.ByteSize()
    copy = type(request)()
    copy.CopyFrom(request)
    copy.DiscardUnknownFields()
    if copy.ByteSize() == size:
        return
    path, number = next(_unknown(request, ""), ("", 0))
    raise UnsupportedError(
        f"{path or request.DESCRIPTOR.name}: field number {number} is not supported by this server",
        field=path,
    )


def _unknown(message: Message, path: str) -> Iterator[tuple[str, int]]:
    """Yield path and number of unknown fields."""
    unknown: AnyType = UnknownFieldSet(message)  # its stub lacks that it is a sequence
    for field in unknown:
        yield path, field.field_number
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        front = f"{path}.{field.name}" if path else field.name
        if field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is not None:
                for key, item in value.items():
                    yield from _unknown(item, f"{front}[{key!r:.80}]")
        elif field.is_repeated:
            for number, item in enumerate(value):
                yield from _unknown(item, f"{front}[{number}]")
        else:
            yield from _unknown(value, front)


MessageT = TypeVar("MessageT", bound=Message)
_TYPES = "type.googleapis.com/"


@dataclass(frozen=True, slots=True)
class Call:
    """What a handler knows of a call besides its request."""

    api: str
    """Package of the path that was called, such as `google.cloud.aiplatform.v1`: types in answers are of the same."""
    deadline: Deadline

    def packed(self, message: Message) -> Any:
        """Return a message as an Any, with the name that its type has in the API that was called."""
        return Any(type_url=type_url(message, self.api), value=message.SerializeToString())


@dataclass(frozen=True, slots=True)
class ForeignMethod:
    """A method of another people's service, with one request and one response."""

    service: str
    """Name of the service without the package: `IndexService`."""
    name: str
    request: type[Message]
    # Each handler takes its own request type.
    handle: Callable[[AnyType, Call], Message]
    scope: Scope
    narrowed: bool = False
    """Whether it serves callers who see a part of an index, as `UnaryMethod.narrowed`."""


def registered(methods: Iterable[ForeignMethod], packages: Iterable[str]) -> dict[str, UnaryMethod]:
    """Return handlers by path: each method under every package.

    Requests with fields that are not in our messages are refused: they could change the meaning.
    """
    return {
        f"/{package}.{method.service}/{method.name}": UnaryMethod(
            method.request, partial(_handled, method, package), method.scope, narrowed=method.narrowed
        )
        for package in packages
        for method in methods
    }


def type_url(message: Message, api: str) -> str:
    """Return the type URL of a message in the package of an API; well-known types keep their own."""
    descriptor = message.DESCRIPTOR
    package = descriptor.file.package
    if package.startswith("google."):
        return f"{_TYPES}{descriptor.full_name}"
    return f"{_TYPES}{api}.{descriptor.full_name.removeprefix(f'{package}.')}"


def _handled(method: ForeignMethod, package: str, request: Message, deadline: Deadline) -> Message:
    check_known(request)
    return method.handle(request, Call(package, deadline))
