"""Pickles of foreign files are data: they run nothing, end no process, and take memory in proportion to their size."""

from __future__ import annotations

import datetime as dt
import decimal
import pickle
import struct
import subprocess
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from scannery.bridges.importers.pickles import only_plain_pickles, plain_value
from scannery.pipelines.errors import PeerError
from tests.data import ROOT, longer, repeated

UUID = uuid.UUID(int=5)
SHARED = {"a": [1, 2]}
SAME: list[Any] = [
    None, 2**70, -1.5, "x" * 300, "Ünï", b"x", (1, ("a",)), {1, 2}, {"a": []}, frozenset({1}), [SHARED, SHARED], UUID,
    [UUID, UUID], dt.datetime(2024, 5, 1, tzinfo=dt.timezone.utc), dt.date(1, 2, 3),
    dt.timedelta(1), decimal.Decimal(2),
]  # fmt: skip
VALUES: list[tuple[Any, Any]] = [
    *((each, each) for each in SAME),
    (bytearray(b"ab"), b"ab"),
    (np.arange(6).reshape(2, 3), [[0, 1, 2], [3, 4, 5]]),
    (np.asfortranarray(np.arange(6, dtype=">i2").reshape(2, 3)), [[0, 1, 2], [3, 4, 5]]),
    (np.zeros(0, np.float32), []),
    (np.array(3.5), 3.5),
    ([np.float16(1.5), np.float16(2.5), np.bool_(True)], [1.5, 2.5, True]),
]  # fmt: skip


class _Reduced:
    """Is pickled as a call, and a state."""

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def __reduce__(self) -> Any:
        return self._parts


RECONSTRUCT = np.arange(1).__reduce__()[0]
FIELDS = _Reduced(np.dtype, ("V8", False, True), (3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0))
LIST = b"\x80\x04]"
REFUSED = {
    "a path": (pickle.dumps(Path("a")), "could run any code"),
    "the address of an object": (
        pickle.dumps(
            _Reduced(
                RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (1,), FIELDS, False, struct.pack("<Q", 0x414141410))
            )
        ),
        "must have one of the types",
    ),
    "objects": (pickle.dumps(np.array([None])), "must have one of the types"),
    "fields": (pickle.dumps(np.zeros(1, "i4,i4")), "must have one of the types"),
    "a shape larger than its bytes": (
        pickle.dumps(_Reduced(RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (1 << 40,), np.dtype("i4"), False, b"1234"))),
        "cannot be read",
    ),
    "bytes by a number": (b"\x80\x04cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R.", "must be made of bytes"),
    "a byte array by its length": (b"\x80\x05\x96" + struct.pack("<Q", 10**13) + b".", "cannot be read"),
    "a class as a value": (b"cnumpy\nndarray\n.", "a name is no value"),
    "an instance without a state": (b"\x80\x04cuuid\nUUID\n)\x81.", "a name is no value"),
    "an attribute of a class": (b"\x80\x04\x8c\x04uuid\x8c\x0dUUID.__init__\x93.", "could run any code"),
    "another list within itself": (LIST + b"2a.", "cannot be read"),
    "tuples in tuples as a key": (b"\x80\x04}" + b")" + b"\x85" * 300_000 + b"Ns.", "keys must be scalars"),
    "lists in lists": (b"\x80\x04" + b"]" * 500_000 + b"a" * 499_999 + b".", "nested more than 100 deep"),
    "lists of the list before": (
        LIST + b"\x94" + b"".join(b"](h%ch%ce\x94" % (n, n) for n in range(60)) + b".",
        "repeated too often",
    ),
    "objects of the object before": (
        b"\x80\x04" + b"".join(
            b"ccopyreg\n_reconstructor\ncbuiltins\nobject\ncbuiltins\nobject\nN\x87Rq%c}" % n
            + (b"X\x01\x00\x00\x00ah%csX\x01\x00\x00\x00bh%csb0" % (n - 1, n - 1) if n else b"b0")
            for n in range(40)
        ) + b"h\x27.",
        "repeated too often",
    ),
    "an array with many dimensions": (pickle.dumps(np.zeros((1000, *[1] * 30), np.uint8)), "at most 4 dimensions"),
    "a text again and again": (
        b"\x80\x04X\x00\x00\x01\x00" + b"x" * 65536 + b"\x94(" + b"h\x00" * 50_000 + b"l.",
        "repeated too often",
    ),
    "half of a character": (pickle.dumps("\ud800"), "cannot be read"),
    "a huge integer": (pickle.dumps(1 << 100_000), "at most 1024 bits"),
}  # fmt: skip


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize(("value", "expected"), VALUES)
def test_plain_values_are_read(value: Any, expected: Any, protocol: int) -> None:
    assert plain_value(pickle.dumps(value, protocol), source="source") == expected


@pytest.mark.system
@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused(name: str) -> None:
    data, message = REFUSED[name]
    with pytest.raises(PeerError, match=f"^source: a pickle in it .*{message}"):
        plain_value(data, source="source")


def test_a_number_in_the_memo_reserves_nothing() -> None:
    assert plain_value(b"\x80\x04Nr\xff\xff\xff\x7f.", source="source") is None


def test_a_library_reads_through_it_and_cannot_read_past_it() -> None:
    library: Any = SimpleNamespace(pickle=pickle)
    data = pickle.dumps(SimpleNamespace(a=1))
    with only_plain_pickles("source", library, {("types", "SimpleNamespace"): dict}):
        assert library.pickle.loads(pickle.dumps([1])) == [1]
        with pytest.raises(PeerError, match="could run any code"):
            pickle.loads(data)
    assert library.pickle is pickle
    assert pickle.loads(data).a == 1


FUZZ = """
import random, resource
from scannery.pipelines.errors import PeerError
from scannery.bridges.importers.pickles import plain_value
from tests.bridges.importers.test_pickles import REFUSED, VALUES, pickle

rng, read = random.Random(SEED), 0
seeds = [pickle.dumps(value, protocol) for value, _ in VALUES for protocol in (3, 4, 5)]
seeds += [data for data, _ in REFUSED.values() if len(data) < 10_000]
before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(TIMES):
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(data) or 1)
        if rng.random() < 0.3:
            other = rng.choice(seeds)
            start = rng.randrange(len(other))
            data[at : at + rng.randrange(9)] = other[start : start + rng.randrange(40)]
        elif data:
            data[at] = rng.randrange(256)
    try:
        repr(plain_value(bytes(data), source="source"))
        read += 1
    except PeerError:
        pass
assert read > TIMES / 50, read
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib)
"""


@pytest.mark.system
@pytest.mark.parametrize("times", [500, pytest.param(repeated(10_000), marks=longer(10_000, 500))])
def test_damaged_pickles_end_no_process_and_take_no_memory(times: int) -> None:
    code = FUZZ.replace("SEED", "7").replace("TIMES", str(times))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) < 32 << 10
