"""The wire contract only grows: nothing that was ever in it changes or goes away.

contract.txt holds one line per field, enum value and method. After an addition, run `make contracts` and commit the
longer file. A line that is changed or missing breaks
clients in use; never make the test pass by editing it away.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor import (
    Descriptor,
    EnumDescriptor,
    FieldDescriptor,
    FileDescriptor,
    ServiceDescriptor,
)

from scannery.v1 import embedding_pb2, index_pb2, search_pb2, types_pb2
from scannery.vertex.v1 import endpoint_pb2, match_pb2, operations_pb2, private_pb2
from scannery.vertex.v1 import index_pb2 as vertex_index_pb2
from scannery.vertex.v2 import collections_pb2, data_objects_pb2
from scannery.vertex.v2 import search_pb2 as vertex_search_pb2

CONTRACT = Path(__file__).with_name("contract.txt")
FILES: tuple[FileDescriptor, ...] = (
    types_pb2.DESCRIPTOR,
    search_pb2.DESCRIPTOR,
    index_pb2.DESCRIPTOR,
    embedding_pb2.DESCRIPTOR,
    # Numbers and names that the managed service has given; its clients use them.
    endpoint_pb2.DESCRIPTOR,
    vertex_index_pb2.DESCRIPTOR,
    match_pb2.DESCRIPTOR,
    operations_pb2.DESCRIPTOR,
    private_pb2.DESCRIPTOR,
    collections_pb2.DESCRIPTOR,
    data_objects_pb2.DESCRIPTOR,
    vertex_search_pb2.DESCRIPTOR,
)
INTERNAL = "scannery/v1/leaf.proto"
"""Between the processes of a cluster; no client calls it (tests/contracts/leaf.txt)."""
# Enum values speak for themselves; services, messages, calls and fields do not.
DECLARATION = re.compile(r"(message|service|enum|rpc) |(?!.*[A-Z_]{4,} = ).* [a-z_]+ = \d+;")
TYPES = {
    value: name.removeprefix("TYPE_").lower()
    for name, value in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}


def contract() -> list[str]:
    return sorted(line for file in FILES for line in lines_of(file))


def lines_of(file: FileDescriptor) -> Iterator[str]:
    for message in file.message_types_by_name.values():
        yield from _message(message)
    for enum in file.enum_types_by_name.values():
        yield from _enum(enum)
    for service in file.services_by_name.values():
        yield from _service(service)


def _message(message: Descriptor) -> Iterator[str]:
    for field in message.fields:
        yield f"{message.full_name}.{field.name} = {field.number}: {_label(field)}{_type(field)}{_oneof(field)}"
    for nested in message.nested_types:
        yield from _message(nested)
    for enum in message.enum_types:
        yield from _enum(enum)


def _enum(enum: EnumDescriptor) -> Iterator[str]:
    for value in enum.values:
        yield f"{enum.full_name}.{value.name} = {value.number}"


def _service(service: ServiceDescriptor) -> Iterator[str]:
    for method in service.methods:
        request = "stream " * method.client_streaming + method.input_type.full_name
        response = "stream " * method.server_streaming + method.output_type.full_name
        yield f"{method.full_name}({request}) returns ({response})"


def _label(field: FieldDescriptor) -> str:
    if field.is_repeated:
        return "repeated "
    return "optional " if field.has_presence and field.message_type is None and not _oneof(field) else ""


def _type(field: FieldDescriptor) -> str:
    named = field.message_type or field.enum_type
    return named.full_name if named else TYPES[field.type]


def _oneof(field: FieldDescriptor) -> str:
    oneof = field.containing_oneof
    return f" in {oneof.name}" if oneof is not None and not oneof.name.startswith("_") else ""


def test_nothing_in_the_contract_changed_or_went_away() -> None:
    lost = set(CONTRACT.read_text().splitlines()) - set(contract())
    assert not lost, "these were part of the contract, and somebody's client relies on them"


def test_additions_are_written_down() -> None:
    added = set(contract()) - set(CONTRACT.read_text().splitlines())
    assert not added, "run `make contracts`"


def test_every_file_of_the_contract_is_in_it() -> None:
    root = Path(__file__).parents[2] / "proto"
    assert sorted((*(file.name for file in FILES), INTERNAL)) == sorted(
        str(path.relative_to(root)) for path in root.rglob("*.proto")
    )


def test_every_field_says_what_it_means() -> None:
    undocumented = []
    for path in (Path(__file__).parents[2] / "proto").rglob("*.proto"):
        before = ""
        for line in path.read_text().splitlines():
            text = line.strip()
            if DECLARATION.match(text) and not before.startswith("//"):
                undocumented.append(f"{path.name}: {text}")
            before = text
    assert undocumented == []


def test_zero_values_of_enums_mean_not_said() -> None:
    for file in FILES:
        for enum in file.enum_types_by_name.values():
            assert enum.values_by_number[0].name.endswith("_UNSPECIFIED")
