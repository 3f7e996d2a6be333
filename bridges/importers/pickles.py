"""Pickles of a foreign file, read as data: plain values, numbers of NumPy, and the classes that a caller knows.

Qdrant's local mode keeps its points as pickles. Python's own reader calls what a pickle names, and NumPy's classes take
addresses of objects from the bytes of a pickle. Here names stand for functions of this module, which check their
arguments. No opcode reserves memory by a number in the pickle. A value that a pickle repeats is copied, up to
MAX_GROWTH times the size of the pickle, so a small pickle has no large value.
"""

from __future__ import annotations

import datetime as dt
import io
import pickle
import struct
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache, partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from scannery.pipelines.errors import PeerError

__all__ = ["only_plain_pickles", "plain_value"]

MAX_GROWTH = 128
MAX_DEPTH = 100
"""Containers within each other: what reads the values calls itself for each of them."""
MAX_INT_BITS = 1024
MAX_ARRAY_DIMENSIONS = 4
"""Each of size 1 makes a list around every number."""
DTYPES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
"""Numbers; none has fields or holds objects."""
_SOURCE: ContextVar[str | None] = ContextVar("scannery_pickle_source", default=None)
_DAMAGE = (
    pickle.UnpicklingError, ArithmeticError, AttributeError, EOFError, LookupError, RecursionError, TypeError,
    ValueError, struct.error,
)  # fmt: skip
"""What a damaged pickle, or one with arguments that a constructor refuses, ends with."""


@contextmanager
def only_plain_pickles(
    source: str, library: ModuleType, classes: Mapping[tuple[str, str], Callable[..., Any]]
) -> Iterator[None]:
    """Have a library read pickles by `plain_value` inside; PeerError from whatever reads them another way.

    Args:
        source: of the pickles, for errors.
        library: module that reads them by `pickle.loads`.
        classes: constructors of further values by module and name; each gets the attributes as keywords.

    """
    _add_hook()
    token, original = _SOURCE.set(source), library.pickle
    loads = partial(plain_value, source=source, classes=classes)
    library.pickle = SimpleNamespace(loads=loads, dumps=pickle.dumps)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        library.pickle = original  # type: ignore[attr-defined]
        _SOURCE.reset(token)


def plain_value(
    data: bytes, *, source: str, classes: Mapping[tuple[str, str], Callable[..., Any]] | None = None
) -> Any:
    """Return the value of a pickle, with numbers of NumPy as Python's, and arrays as lists.

    Raises:
        PeerError: it is damaged, has anything but plain values, or is nested too deep.

    """
    try:
        value = _Reader(data, source, classes or {}).load()
        _check(value)
    except PeerError:
        raise
    except _DAMAGE as error:
        message = f"{source}: a pickle in it cannot be read: {type(error).__name__}: {error!s:.200}"
        raise PeerError(message) from error
    return value


@lru_cache(maxsize=1)
def _add_hook() -> None:
    sys.addaudithook(_refuse)  # for the life of the process: it cannot be taken away


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "pickle.find_class" and (source := _SOURCE.get()) is not None:
        raise _not_plain(source, *arguments)


def _not_plain(source: str, module: object, name: object) -> PeerError:
    return PeerError(
        f"{source}: a pickle in it refers to {module!r:.80}.{name!r:.80}, and could run any code; it is not read"
    )


@dataclass(frozen=True, eq=False)
class _Function:
    """What a name stands for that a pickle calls."""

    call: Callable[..., Any]


@dataclass(frozen=True, eq=False)
class _Class:
    """What a name stands for whose instances get a state after they are made."""

    build: Callable[[Any], Any]


class _Unbuilt:
    """An instance; its value is made from its state."""

    def __init__(self, build: Callable[[Any], Any]) -> None:
        self.build = build
        self.value: Any = self


class _Memo(dict[int, Any]):
    """What a pickle refers to by number; containers come as copies, so that no value contains itself."""

    def __init__(self, growth: int) -> None:
        super().__init__()
        self._remaining = growth

    def __getitem__(self, number: int) -> Any:
        return self._copied(super().__getitem__(number), MAX_DEPTH)

    def _copied(self, value: Any, depth: int) -> Any:
        self._remaining -= len(value) if isinstance(value, (str, bytes)) else 1
        if self._remaining < 0 or depth < 0:
            raise ValueError("values are repeated too often, or nested too deep")
        if isinstance(value, dict):
            return {key: self._copied(each, depth - 1) for key, each in value.items()}
        if isinstance(value, (list, set, frozenset, tuple)):
            return type(value)(self._copied(each, depth - 1) for each in value)
        if isinstance(value, _Unbuilt) and value.value is not value:
            return self._copied(value.value, depth)
        return value


_Unpickler: Any = pickle._Unpickler
"""The unpickler that is written in Python: the one in C reserves memory by numbers in the pickle."""


class _Reader(_Unpickler):
    def __init__(
        self, data: bytes, source: str, classes: Mapping[tuple[str, str], Callable[..., Any]]
    ) -> None:
        super().__init__(io.BytesIO(data))
        self.memo = _Memo(MAX_GROWTH * len(data))
        self._source = source
        self._classes = classes

    def find_class(self, module: str, name: str) -> Any:
        """Return what a name stands for."""
        constructor = self._classes.get((module, name))
        if constructor is not None:
            return _Class(partial(_built, constructor))
        if (module, name) not in _NAMES:
            raise _not_plain(self._source, module, name)
        return _NAMES[module, name]

    def load_reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, _Function) or not isinstance(arguments, tuple):
            raise TypeError("what is called must be a function")
        self.stack.append(function.call(*arguments))

    def load_newobj(self) -> None:
        arguments, target = self.stack.pop(), self.stack.pop()
        if not isinstance(target, _Class) or arguments != ():
            raise TypeError("what is made must be of a class, without arguments")
        self.stack.append(_Unbuilt(target.build))

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.stack[-1].update({_key(key): value})

    def load_setitems(self) -> None:
        items = self.pop_mark()
        self.stack[-1].update(zip(map(_key, items[::2]), items[1::2], strict=True))

    def load_additems(self) -> None:
        items = self.pop_mark()
        self.stack[-1].update(map(_key, items))

    def load_frozenset(self) -> None:
        items = self.pop_mark()  # which puts another stack in place of this one
        self.stack.append(frozenset(map(_key, items)))

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.stack.append(dict(zip(map(_key, items[::2]), items[1::2], strict=True)))

    def load_build(self) -> None:
        state, instance = self.stack.pop(), self.stack.pop()
        if not isinstance(instance, _Unbuilt) or instance.value is not instance:
            raise TypeError("what gets a state must be an instance without one")
        instance.value = instance.build(state)
        self.stack.append(instance.value)

    dispatch: dict[int, Callable[[Any], None]] = {  # noqa: RUF012  as in the base class
        getattr(pickle, name)[0]: _Unpickler.dispatch[getattr(pickle, name)[0]]
        for name in (
            "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT",
            "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE",
            "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "EMPTY_LIST", "EMPTY_DICT",
            "EMPTY_TUPLE", "EMPTY_SET", "LIST", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "APPEND", "APPENDS", "PUT",
            "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET", "GLOBAL", "STACK_GLOBAL",
        )
    }  # fmt: skip
    # As bytes: the base class reserves as many as the number in front says.
    dispatch[pickle.BYTEARRAY8[0]] = dispatch[pickle.BINBYTES8[0]]
    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.NEWOBJ[0]] = load_newobj
    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.ADDITEMS[0]] = load_additems
    dispatch[pickle.FROZENSET[0]] = load_frozenset
    dispatch[pickle.DICT[0]] = load_dict


def _check(value: Any) -> None:
    level, depth = [value], 0
    while level:
        for each in level:
            if isinstance(each, (_Function, _Class, _Unbuilt, np.dtype)):
                raise ValueError("a name is no value")
            if isinstance(each, int) and each.bit_length() > MAX_INT_BITS:
                raise ValueError(f"integers must have at most {MAX_INT_BITS} bits")
            if isinstance(each, str):
                each.encode()  # UnicodeEncodeError, which is a ValueError: a surrogate
        if depth > MAX_DEPTH:
            raise ValueError(f"values are nested more than {MAX_DEPTH} deep")
        level, depth = [each for outer in level for each in _items(outer)], depth + 1


def _key(value: Any) -> Any:
    """Return a key of a dict or an item of a set: the hash of nested tuples would take the stack of the process."""
    if isinstance(value, (tuple, frozenset)):
        raise TypeError("keys must be scalars")
    return value


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value
        value = value.values()
    elif not isinstance(value, (list, set, frozenset, tuple)):
        return
    yield from value


def _built(constructor: Callable[..., Any], state: dict[str, Any]) -> Any:
    return constructor(**state.get("__dict__", state))


def _instance(target: Any, _: Any, state: Any) -> _Unbuilt:
    if not isinstance(target, _Class) or state is not None:
        raise TypeError("what is made must be of a class, without a state")
    return _Unbuilt(target.build)


def _bytes(data: Any = b"") -> bytes:
    if not isinstance(data, bytes):
        raise TypeError("bytes must be made of bytes")
    return data


def _set(kind: type, items: Any = ()) -> Any:
    if not isinstance(items, (list, tuple)):
        raise TypeError("a set must be made of a list")
    return kind(map(_key, items))


def _decimal(text: str) -> Decimal:
    if not isinstance(text, str):
        raise TypeError("a decimal must be made of text")
    return Decimal(text)


def _dtype(name: str, *_: Any) -> _Unbuilt:
    if name not in DTYPES:
        raise ValueError(f"arrays must have one of the types {', '.join(DTYPES)}, got {name!r:.80}")
    return _Unbuilt(partial(_ordered, name))


def _ordered(name: str, state: Any) -> np.dtype[Any]:
    _, order, *tail = state
    if order not in ("<", ">", "|", "=") or any(each not in (None, -1, 0) for each in tail):
        raise ValueError("arrays must be of numbers")
    dtype: np.dtype[Any] = np.dtype(order + name)
    return dtype


def _array(state: Any) -> Any:
    _, shape, dtype, by_columns, data = state
    return _numbers(data, dtype, shape, "F" if by_columns else "C")


def _numbers(data: Any, dtype: Any, shape: Any, order: Any = "C") -> Any:
    """Return the numbers of an array, in lists if it has dimensions."""
    if not isinstance(dtype, np.dtype) or not isinstance(data, bytes) or order not in ("C", "F"):
        raise TypeError("an array must be made of a type, a shape and bytes")
    sizes = tuple(shape) if isinstance(shape, tuple) else (shape,)
    if not data:
        return []
    if len(sizes) > MAX_ARRAY_DIMENSIONS or any(type(size) is not int or size < 1 for size in sizes):
        raise ValueError(f"an array must have at most {MAX_ARRAY_DIMENSIONS} dimensions, with sizes above 0")
    return np.frombuffer(data, dtype).reshape(sizes, order=order).tolist()


_NAMES: dict[tuple[str, str], Any] = {
    ("builtins", "bytearray"): _Function(_bytes),
    ("builtins", "frozenset"): _Function(partial(_set, frozenset)),
    ("builtins", "object"): _Class(dict),
    ("builtins", "set"): _Function(partial(_set, set)),
    ("collections", "OrderedDict"): _Function(lambda: {}),
    ("copyreg", "_reconstructor"): _Function(_instance),
    ("datetime", "date"): _Function(dt.date),
    ("datetime", "datetime"): _Function(dt.datetime),
    ("datetime", "time"): _Function(dt.time),
    ("datetime", "timedelta"): _Function(dt.timedelta),
    ("datetime", "timezone"): _Function(dt.timezone),
    ("decimal", "Decimal"): _Function(_decimal),
    ("numpy", "dtype"): _Function(_dtype),
    ("numpy", "ndarray"): _Class(_array),
    ("uuid", "UUID"): _Class(lambda state: uuid.UUID(int=state["int"])),
    **{
        (f"numpy.{core}.{module}", name): function
        for core in ("core", "_core")
        for module, name, function in (
            ("multiarray", "_reconstruct", _Function(lambda *_: _Unbuilt(_array))),
            ("multiarray", "scalar", _Function(lambda dtype, data: _numbers(data, dtype, ()))),
            ("numeric", "_frombuffer", _Function(_numbers)),
        )
    },
}
"""What the names in a pickle stand for: data, and nothing that runs a file's choice of code."""
