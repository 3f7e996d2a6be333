"""Records of the audit log, as lines of JSON in a chain of hashes.

    {"chain":0,"n":7,"time":"2026-11-30T04:00:00.123Z","server":"5f…","wire":"http","principal":"web/k1",
     "address":"10.0.0.7","method":"scannery.v1.SearchService/Search","index":"podcasts","outcome":"OK","rows":10,
     "ms":0.81,"hash":"9c…"}

`hash` is the SHA-256 of the hash of the record before, in hexadecimal digits, and of all bytes of the line in front of
`,"hash"`. Whatever callers choose, such as names, is a JSON string of ASCII characters and of bounded length.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

__all__ = [
    "NO_HASH", "CallFacts", "CallRecord", "Event", "Line", "Record", "call_facts", "hash_of", "lines_of",
    "parsed_line",
]  # fmt: skip

NO_HASH = "0" * 64
"""Hash in place of that of a record before the first one."""
MAX_NAME = 200
"""Characters of a name in a record; of a longer one, the first ones."""
_LINE = re.compile(
    rb'(?P<content>\{"chain":(?P<chain>[0-9]{1,4}),"n":(?P<n>[0-9]+),"time":"(?P<time>[0-9T:.Z-]+)",.*),"hash":"(?P<hash>[0-9a-f]{64})"\}'
)


CallFacts: TypeAlias = tuple[str, str, str, str, str, str, str]
"""Facts that many calls have in common: wire, name of the caller (empty: it did not authenticate itself), its address
(empty: it is this process), path of the method, the name by which the request named the index, name of the index, and
outcome: the name of the status, or STARTED of a change that begins now."""
CallRecord: TypeAlias = tuple[int, CallFacts, Sequence[int], float, int]
"""A call: its time in nanoseconds since 1970, facts, the number of rows in parts (empty: it has none), seconds, and the
number of the call, which both records of a change have (0: it has one record). Plain tuples: each call makes one."""


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to the log itself."""

    time_ns: int
    name: str
    facts: Mapping[str, Any]


Record: TypeAlias = CallRecord | Event


class Line(NamedTuple):
    """A line, as it was read."""

    chain: int
    n: int
    """Number of the record in its chain."""
    hash: str
    """Hash that the line names."""
    time: str
    content: bytes
    """Part of the line that its hash is of."""

    @property
    def event(self) -> Mapping[str, Any]:
        """The record, if it is of an event; empty: it is of a call."""
        # Quotes in names are escaped.
        if b',"event":' not in self.content:
            return {}
        try:
            record = json.loads(self.content + b"}")
        except ValueError:
            return {}
        return record if isinstance(record, dict) else {}


def call_facts(
    wire: str, principal: str, address: str, path: str, alias: str, index: str, outcome: str
) -> CallFacts:
    """Return the facts of a call, with names of bounded length: records wait in memory, and facts are cached."""
    return (
        wire, _bounded(principal), _bounded(address), _bounded(path), _bounded(alias), _bounded(index), outcome
    )  # fmt: skip


def _bounded(name: str) -> str:
    return name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}…"


def hash_of(previous: str, content: bytes) -> str:
    """Return the hash of a record behind another one, in hexadecimal digits."""
    return sha256(previous.encode("ascii") + content).hexdigest()


def lines_of(
    chain: int, server: str, n: int, previous: str, records: list[Record]
) -> tuple[list[bytes], list[str]]:
    """Return the lines of records, and their hashes.

    Args:
        chain: number of the chain.
        server: id of the server.
        n: number of the first record.
        previous: hash of the record before it.
        records: in their order.

    """
    lines, hashes = list[bytes](), list[str]()
    front, facts_of, second, at = f'{{"chain":{chain},"n":', partial(_facts, server), -1, ""
    for number, record in enumerate(records, n):
        milliseconds = (record.time_ns if isinstance(record, Event) else record[0]) // 1_000_000
        if milliseconds // 1000 != second:
            second = milliseconds // 1000
            at = time.strftime('"time":"%Y-%m-%dT%H:%M:%S', time.gmtime(second))
        if isinstance(record, Event):
            named = {"server": server, "event": record.name, **record.facts}
            facts = f",{json.dumps(named, separators=(',', ':'))[1:-1]}"
        else:
            _, shared, counts, seconds, call = record
            rows = f',"rows":{sum(counts)}' if counts else ""
            twice = f',"call":{call}' if call else ""
            facts = f'{facts_of(shared)}{rows},"ms":{seconds * 1000:.2f}{twice}'
        text = f'{front}{number},{at}.{milliseconds % 1000:03d}Z"{facts}'
        previous = sha256(f"{previous}{text}".encode("ascii")).hexdigest()
        lines.append(f'{text},"hash":"{previous}"}}\n'.encode("ascii"))
        hashes.append(previous)
    return lines, hashes


def parsed_line(line: bytes) -> Line | None:
    """Return the parts of a line without its end; None: it is no record."""
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    return Line(
        int(match["chain"]),
        int(match["n"]),
        match["hash"].decode("ascii"),
        match["time"].decode("ascii"),
        match["content"],
    )


@lru_cache(maxsize=1024)
def _facts(server: str, facts: CallFacts) -> str:
    """Return what many calls have in common, as members of an object."""
    wire, principal, address, path, alias, index, outcome = facts
    named = {
        "server": server,
        "wire": wire,
        "principal": principal,
        "address": address,
        "method": path.removeprefix("/"),
        "index": index,
    }
    if alias and alias != index:
        named["alias"] = alias
    named["outcome"] = outcome
    return f",{json.dumps(named, separators=(',', ':'))[1:-1]}"
