"""No compiled function raises: numba does not release the arguments of a call that ends with an exception."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data import ROOT

ROOMS = sorted(path for path in (ROOT / "src" / "scannery").iterdir() if path.is_symlink())
MODULES = [module for room in ROOMS for module in sorted(room.resolve().rglob("*.py"))]
COMPILERS = ("compiled", "_compiled")
OF_NUMBA = (
    "jit", "njit", "vectorize", "guvectorize", "cfunc", "stencil", "overload", "jitclass", "generated_jit",
)  # fmt: skip


CALLS = {
    *("abs", "bool", "float", "int", "len", "max", "min", "range"),
    *(
        f"np.{kind}"
        for kind in ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint32", "uint64")
    ),
    *("np.isnan", "np.rint", "np.sqrt"),
    *("copy_bytes", "load_word", "prefetch", "row_factor", "score", "step_product", "swap"),  # intrinsics
    *(
        "np.empty",
        "np.full",
        "np.zeros",
        "copy",
    ),  # these raise for lack of memory only, and for sizes below 0
}
"""What compiled functions may call, beside each other. Most methods of arrays can raise, also `max` and `view`."""
SAME_SIZE = {("_extremes", "view"), ("order_leaves", "np.argsort")}
"""Calls that cannot raise for their arguments: the views are of as large numbers, of contiguous arrays."""


def tree_of(module: Path) -> ast.Module:
    return ast.parse(module.read_text("utf-8"))


def names_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} | {
        each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)
    }


def compiled_functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Yield functions with a decorator that compiles, and those that are passed to one."""
    passed = {
        name
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and names_in(call.func) & {*COMPILERS, *OF_NUMBA}
        for argument in call.args
        for name in names_in(argument)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (
            node.name in passed
            or any(names_in(each) & {*COMPILERS, *OF_NUMBA} for each in node.decorator_list)
        ):
            yield node


KERNELS = [
    pytest.param(module, function, id=f"{module.relative_to(ROOT)}:{function.name}")
    for module in MODULES
    if "import numba" in (text := module.read_text("utf-8")) or "kernels.fused import" in text
    for function in compiled_functions(ast.parse(text))
]


NAMES = {str(getattr(parameter.values[1], "name", "")) for parameter in KERNELS}


def test_all_kernels_are_looked_at() -> None:
    assert len(KERNELS) > 50


@pytest.mark.parametrize(("module", "function"), KERNELS)
def test_no_compiled_function_has_what_raises(module: Path, function: ast.FunctionDef) -> None:
    for node in (each for statement in function.body for each in ast.walk(statement)):
        assert not isinstance(node, ast.Raise | ast.Assert | ast.Try), f"{module}:{node.lineno}"
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if isinstance(node.func, ast.Attribute) and not name.startswith("np."):
                name = node.func.attr
            allowed = CALLS | NAMES | {call for owner, call in SAME_SIZE if owner == function.name}
            assert name in allowed, f"{module}:{node.lineno}: {name} can raise"


@pytest.mark.system
def test_nothing_is_compiled_another_way() -> None:
    """All is compiled with `error_model="numpy"`: a division by zero raises with numba's own default."""
    users = set()
    for module in MODULES:
        for node in ast.walk(tree_of(module)):
            if (
                isinstance(node, ast.Attribute)
                and ast.unparse(node.value) == "numba"
                and node.attr in OF_NUMBA
            ):
                users.add(module.name)
            if isinstance(node, ast.ImportFrom) and node.module == "numba":
                assert not {alias.name for alias in node.names} & {*OF_NUMBA}, module
        if module.name in users:
            assert 'error_model": "numpy"' in (text := module.read_text()) or text.count(
                "numba.njit"
            ) == text.count('error_model="numpy"')
    assert users == {"fused.py", "wordpiece_kernel.py"}
