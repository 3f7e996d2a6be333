"""The text of a ranking expression, read into a tree: a small part of the syntax of Python, without names of its own.

Python's parser reads it; only the kinds of nodes below are taken, and none is ever run.
"""

from __future__ import annotations

import ast
import difflib
import math
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

from scannery.indexer.ranking.expression import (
    FUNCTIONS,
    LIMIT,
    Attribute,
    Call,
    Condition,
    Constant,
    Decay,
    Expression,
    Now,
    Program,
    Score,
    compiled,
)
from scannery.runtime.times import length_s

__all__ = ["MAX_CHARACTERS", "RankingSyntaxError", "parsed", "program_of"]

MAX_CHARACTERS = 4_000
MAX_NODES = 400
MAX_SIGNALS = 16
"""An index keeps four bytes for each signal and row: 64 MB of a million rows."""
_NUMERIC = ("int", "float", "bool", "timestamp")
_COMPARED = ("string", "string_list", "timestamp")

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
}
_OPERATORS: dict[type[ast.cmpop], str] = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "lte",
    ast.Gt: "gt",
    ast.GtE: "gte",
}
_MIRRORED = {"lt": "gt", "lte": "gte", "gt": "lt", "gte": "lte"}


class RankingSyntaxError(ValueError):
    """An expression that cannot be read; the message says what is wrong, and where."""


def parsed(text: str, attributes: Mapping[str, str]) -> Expression:
    """Return the tree of an expression.

    Args:
        text: for example `score + 0.2 * decay(published, '90d')`.
        attributes: the declared attributes of the index, with their types.

    Raises:
        RankingSyntaxError: it is no expression, or names what there is not.

    """
    if len(text) > MAX_CHARACTERS:
        raise RankingSyntaxError(f"has {len(text)} characters, at most {MAX_CHARACTERS} are read")
    try:
        tree = ast.parse(text.strip(), mode="eval")
        nodes = sum(1 for _ in ast.walk(tree))
        if nodes > 4 * MAX_NODES:
            raise RankingSyntaxError("has too many parts")
        return _Parser(attributes).read(tree.body)
    except SyntaxError as error:
        raise RankingSyntaxError(f"{error.msg} at character {error.offset}: {text:.80}") from None
    except (RecursionError, MemoryError):
        raise RankingSyntaxError("is nested too deeply") from None
    except RankingSyntaxError:
        raise
    except ValueError as error:  # NUL characters, digits without end
        raise RankingSyntaxError(str(error)) from None


def program_of(text: str, attributes: Mapping[str, str]) -> Program:
    """Return the program of an expression; the arguments and errors are those of `parsed`."""
    program = compiled(parsed(text, attributes))
    if len(program.signals) > MAX_SIGNALS:
        raise RankingSyntaxError(
            f"combines the score with {len(program.signals)} parts of attributes, at most {MAX_SIGNALS} are kept; "
            "a sum or a product of attributes is one part"
        )
    return program


class _Parser:
    def __init__(self, attributes: Mapping[str, str]) -> None:
        self._attributes = attributes
        self._nodes = 0

    def read(self, node: ast.expr) -> Expression:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise RankingSyntaxError(f"has more than {MAX_NODES} parts")
        reader = _READERS.get(type(node))
        if reader is None:
            raise RankingSyntaxError(f"{ast.unparse(node):.80}: is not part of the language of rankings")
        return reader(self, node)

    def constant(self, node: ast.Constant) -> Expression:
        value = node.value
        if isinstance(value, bool):
            return Constant(float(value))
        if not isinstance(value, (int, float)):
            raise RankingSyntaxError(f"{value!r:.80}: is no number; texts are compared with attributes only")
        if value > LIMIT:
            raise RankingSyntaxError(f"{ast.unparse(node):.80}: is too large, the limit is {LIMIT:g}")
        return Constant(float(value))

    def name(self, node: ast.Name) -> Expression:
        if node.id == "score":
            return Score()
        if node.id == "now":
            return Now()
        return self._numeric(node)

    def unary(self, node: ast.UnaryOp) -> Expression:
        if isinstance(node.op, ast.UAdd):
            return self.read(node.operand)
        if isinstance(node.op, ast.Invert):
            raise RankingSyntaxError("~: is not part of the language of rankings")
        operand = self.read(node.operand)
        if isinstance(node.op, ast.Not):
            return Call("not", (operand,))
        return Constant(-operand.value) if isinstance(operand, Constant) else Call("negative", (operand,))

    def binary(self, node: ast.BinOp) -> Expression:
        function = _BINARY.get(type(node.op))
        if function is None:
            raise RankingSyntaxError(
                f"{ast.unparse(node):.80}: of operators there are + - * /; see also sqrt, exp and log"
            )
        return Call(function, (self.read(node.left), self.read(node.right)))

    def both(self, node: ast.BoolOp) -> Expression:
        function = "min" if isinstance(node.op, ast.And) else "max"
        return reduce(lambda a, b: Call(function, (a, b)), map(self.read, node.values))

    def choice(self, node: ast.IfExp) -> Expression:
        return Call("if", (self.read(node.test), self.read(node.body), self.read(node.orelse)))

    def comparison(self, node: ast.Compare) -> Expression:
        sides = [node.left, *node.comparators]
        parts = [
            self._compared(left, operator, right)
            for left, operator, right in zip(sides, node.ops, sides[1:], strict=False)
        ]
        return reduce(lambda a, b: Call("min", (a, b)), parts)

    def call(self, node: ast.Call) -> Expression:
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise RankingSyntaxError(
                f"{ast.unparse(node):.80}: call a function by its name, without keywords"
            )
        name, arguments = node.func.id, node.args
        special = _SPECIAL.get(name)
        if special is not None:
            return special(self, arguments)
        function = FUNCTIONS.get(name)
        if function is None or name not in _CALLED:
            raise RankingSyntaxError(_unknown(name, [*_CALLED, *_SPECIAL], "function"))
        if name in ("min", "max") and len(arguments) > 1:
            return reduce(lambda a, b: Call(name, (a, b)), map(self.read, arguments))
        if len(arguments) != function.arity:
            raise RankingSyntaxError(f"{name}: takes {function.arity} arguments, got {len(arguments)}")
        return Call(name, tuple(map(self.read, arguments)))

    def attribute(self, arguments: list[ast.expr]) -> Expression:
        """Read `attribute('a name')`, for names that are no words of the language."""
        self._check_count("attribute", arguments, 1, 1)
        return self._numeric(arguments[0])

    def default(self, arguments: list[ast.expr]) -> Expression:
        self._check_count("default", arguments, 2, 2)
        number = self.read(arguments[1])
        if not isinstance(number, Constant):
            raise RankingSyntaxError("default: the second argument must be a number")
        return Attribute(self._named(arguments[0], _NUMERIC, "default"), number.value)

    def has(self, arguments: list[ast.expr]) -> Expression:
        self._check_count("has", arguments, 1, 1)
        return Condition(self._named(arguments[0], None, "has"), "exists", ())

    def decay(self, arguments: list[ast.expr]) -> Expression:
        self._check_count("decay", arguments, 2, 3)
        name = self._named(arguments[0], ("int", "float", "timestamp"), "decay")
        of_times = self._attributes[name] == "timestamp"
        half_life = self._length(arguments[1], of_times=of_times)
        origin = None
        if len(arguments) == 3:
            number = self.read(arguments[2])
            if not isinstance(number, (Constant, Now)):
                raise RankingSyntaxError("decay: the third argument, the origin, must be a number")
            origin = number.value if isinstance(number, Constant) else None
        elif not of_times:
            raise RankingSyntaxError(f"decay: {name!r} is no timestamp; give the origin as a third argument")
        return Decay(name, half_life, origin)

    def _length(self, node: ast.expr, *, of_times: bool) -> float:
        """Return a half-life: a number, or a text like `90d`."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            seconds = length_s(node.value)
            if seconds is None or not of_times:
                raise RankingSyntaxError(
                    f"decay: {node.value!r:.80} is no length of time like '90d' (s, m, h, d, w, y) of a timestamp"
                )
            length = seconds
        else:
            number = self.read(node)
            length = number.value if isinstance(number, Constant) else 0.0
        if not 0 < length < math.inf:
            raise RankingSyntaxError("decay: the half-life must be a number above 0")
        return length

    def _compared(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Expression:
        if isinstance(operator, (ast.In, ast.NotIn)):
            member = self._membership(left, right)
            return Call("not", (member,)) if isinstance(operator, ast.NotIn) else member
        name = _OPERATORS.get(type(operator))
        if name is None:
            raise RankingSyntaxError("is: compare by ==")
        if _is_text(left):
            left, right, name = right, left, _MIRRORED.get(name, name)
        if _is_text(right):
            negated = name == "ne"
            attribute = self._named(left, _COMPARED, name)
            condition = Condition(attribute, "eq" if negated else name, (_text(right),))
            return Call("not", (condition,)) if negated else condition
        a, b = self.read(left), self.read(right)
        if name in ("lt", "lte"):
            return Call("less" if name == "lt" else "less_equal", (a, b))
        if name in ("gt", "gte"):
            return Call("less" if name == "gt" else "less_equal", (b, a))
        equal = Call("equal", (a, b))
        return Call("not", (equal,)) if name == "ne" else equal

    def _membership(self, left: ast.expr, right: ast.expr) -> Expression:
        if _is_text(left):  # 'news' in tags
            return Condition(self._named(right, ("string_list",), "in"), "eq", (_text(left),))
        if not isinstance(right, (ast.List, ast.Tuple)) or not right.elts:
            raise RankingSyntaxError(
                f"{ast.unparse(right):.80}: `in` needs a list, as in show in ['news', 'talk']"
            )
        self._nodes += len(right.elts)
        if all(map(_is_text, right.elts)):
            return Condition(self._named(left, _COMPARED, "in"), "in", tuple(map(_text, right.elts)))
        parts = [self._compared(left, ast.Eq(), each) for each in right.elts]
        return reduce(lambda a, b: Call("max", (a, b)), parts)

    def _numeric(self, node: ast.expr) -> Expression:
        return Attribute(self._named(node, _NUMERIC, ""))

    def _named(self, node: ast.expr, kinds: tuple[str, ...] | None, where: str) -> str:
        """Return the name of a declared attribute of one of some types."""
        is_call = (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "attribute"
        )
        if is_call and len(node.args) == 1:  # type: ignore[attr-defined]  # which `is_call` tells
            node = node.args[0]  # type: ignore[attr-defined]
        prefix = f"{where}: " if where else ""
        name = node.id if isinstance(node, ast.Name) else _text(node) if _is_text(node) else None
        if name is None:
            raise RankingSyntaxError(f"{prefix}{ast.unparse(node):.80} is no attribute")
        kind = self._attributes.get(name)
        if kind is None:
            names = [*self._attributes, "score", "now"]
            raise RankingSyntaxError(prefix + _unknown(name, names, "declared attribute"))
        if kinds is not None and kind not in kinds:
            raise RankingSyntaxError(f"{prefix}{name!r} is a {kind}, not {' or '.join(kinds)}")
        return name

    def _check_count(self, name: str, arguments: list[ast.expr], least: int, maximum: int) -> None:
        if not least <= len(arguments) <= maximum:
            takes = f"{least}" if least == maximum else f"{least} or {maximum}"
            raise RankingSyntaxError(f"{name}: takes {takes} arguments, got {len(arguments)}")


_READERS: dict[type[ast.expr], Callable[[_Parser, Any], Expression]] = {
    ast.Constant: _Parser.constant,
    ast.Name: _Parser.name,
    ast.UnaryOp: _Parser.unary,
    ast.BinOp: _Parser.binary,
    ast.BoolOp: _Parser.both,
    ast.IfExp: _Parser.choice,
    ast.Compare: _Parser.comparison,
    ast.Call: _Parser.call,
}
_SPECIAL: dict[str, Callable[[_Parser, list[ast.expr]], Expression]] = {
    "attribute": _Parser.attribute,
    "default": _Parser.default,
    "has": _Parser.has,
    "decay": _Parser.decay,
}
_CALLED = ("min", "max", "log", "exp", "sqrt", "abs")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _text(node: ast.expr) -> str:
    assert isinstance(node, ast.Constant)
    return str(node.value)


def _unknown(name: str, names: list[str], what: str) -> str:
    near = difflib.get_close_matches(name, names, 1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names[:20])}" if names else ""
    return f"{name!r:.80} is no {what}{hint}"
