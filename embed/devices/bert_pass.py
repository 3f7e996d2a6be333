"""A whole BERT in bfloat16 as one function, which runs in the thread that calls it, without the interpreter's lock.

A library's products are called one by one, two dozen for a text: between them the thread needs the interpreter, for
which it waits where other threads have it, and a team of threads waits for each of its members at each of them. Here a
batch is one call on one core; several batches are several calls. For processors with AVX512-BF16.

The weights of a product are read once for up to 14 tokens, whose sums fill the registers.

Legend: S tokens of all texts, D dimensions, I dimensions between the two products of the feed-forward part.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scannery.embed.devices.bert_kernels import add_norm_code, attention_code, bounds_of, has_flag
from scannery.embed.devices.llvm_ir import FLOATS, WORDS, Code, compiled, floats, one_float

__all__ = ["ALONE_TOKENS", "BUFFERS", "COLUMNS", "BertPass", "bert_pass", "block_rows", "work_bytes"]

COLUMNS = 32
"""Columns of a product that are computed together."""
BLOCKS = (8, 10, 12, 14)
"""Tokens that are computed together; there is a function for each. 14 times 2 vectors of sums, two of weights and one
of inputs take 31 of the 32 registers."""
AHEAD_BYTES = 2048
"""How far ahead weights are fetched; the caches are too small for those of a model, and processors fetch less far."""

ALONE_TOKENS = 64
"""Most tokens of a text that is computed without torch; its memory is kept, 0.3 MiB for a small model."""
SHORTEST = 1e-12
"""Length below which a vector is divided by this instead, as torch does."""

BUFFERS = ("qkv", "attended", "attended_norm", "wide", "narrow", "norm")
"""What a layer has in the table, each with weights and biases."""

ERF = (
    0.00065685814, -0.0018565257, 0.0023967186, -0.0042704470, 0.0099043678, -0.018120909, 0.028805876, -0.043302134,
    0.061072193, -0.081270494, 0.10584740, -0.14595483, 0.29442495,
)  # fmt: skip
"""Coefficients of erf(x / √2) / x in 2 * (x / ERF_END)² - 1, highest power first, fitted for the least error of
erf(x / √2): 2e-6."""
ERF_END = 4.8
"""Least x from which on erf(x / √2) is taken for its value here."""


@dataclass(frozen=True)
class BertPass:
    """The compiled functions for one size of a model; they take addresses, and release the interpreter's lock."""

    passes: dict[int, Any]
    """Compiled passes by tokens of a block: `(ids, positions, words, places, result, work, ends, texts, rows,
    blocks, table, layers, heads, epsilon, averaged, unit, lengths)`.

    ids, positions: int64 (rows,), rows of words and places, which are bfloat16 (any, D). result: float32 (texts, D),
    the mean of the first `averaged` tokens of each text, scaled to length 1 if `unit` is not 0; their lengths before,
    float32 (texts,), go to `lengths` at the end of the arguments. work: `work_bytes`,
    then the scratch memory of attention and normalisation. ends: int32 (texts + 1,). table: int64, the addresses of
    weight and bias of the first normalisation, and of BUFFERS for each layer.
    """
    engine: Any
    """Keeps the machine code."""


@functools.cache
def bert_pass(head_size: int, width: int, inner: int) -> BertPass | None:
    """Return the functions for a size of model; None if the processor, LLVM or the size does not allow them.

    Args:
        head_size: dimensions of a head.
        width: D.
        inner: I.

    """
    if head_size % 32 or not 32 <= head_size <= 128 or width % COLUMNS or inner % COLUMNS:
        return None
    if not has_flag("avx512_bf16"):
        return None
    code = [attention_code(head_size), add_norm_code()]
    for rows in BLOCKS:
        code += [
            _product(_name(width, rows), width, rows, gelu=False),
            _product(_name(width, rows, gelu=True), width, rows, gelu=True),
            _pass(width, inner, rows),
        ]
        if inner != width:
            code.append(_product(_name(inner, rows), inner, rows, gelu=False))
    try:
        engine = compiled(code)
    except (
        RuntimeError,
        ImportError,
        AttributeError,
    ):  # an LLVM before 15 knows neither `ptr` nor these types
        return None
    pointer, size, single = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
    kind = ctypes.CFUNCTYPE(
        None, *[pointer] * 7, *[size] * 3, pointer, size, size, single, size, size, pointer
    )
    return BertPass({rows: kind(engine.get_function_address(f"pass_{rows}")) for rows in BLOCKS}, engine)


def block_rows(tokens: int) -> int:
    """Return the tokens of a block with which a batch of `tokens` tokens is computed with the fewest empty rows."""
    return min(reversed(BLOCKS), key=lambda rows: -(-tokens // rows) * rows)


def work_bytes(tokens: int, width: int, inner: int) -> int:
    """Return the bytes needed by a batch of `tokens` tokens, empty rows of blocks among them, but scratch memory."""
    return tokens * (4 * width + _inner_bytes(width, inner))


def _inner_bytes(width: int, inner: int) -> int:
    """Return the bytes of a token for queries, keys, values and attention, and then for the feed-forward part."""
    return 2 * max(inner, 4 * width)


def _name(depth: int, rows: int, *, gelu: bool = False) -> str:
    return f"{'gelu' if gelu else 'product'}_{depth}_{rows}"


def _product(name: str, depth: int, rows: int, *, gelu: bool) -> str:
    """Return the function `y = x @ weight.T + bias`, then GELU if asked for.

    x: bfloat16 (blocks * rows, depth). weight: bfloat16, for each COLUMNS columns and each pair of their inputs both
    inputs of each column. bias: float32.
    """
    code = Code()
    width_bytes = code.times("%width", 2)
    with code.loop("%width", COLUMNS) as column:
        weights = code.at("%weight", code.times(column, 2 * depth))
        bias = code.at("%bias", code.times(column, 4))
        with code.loop("%blocks", 1) as block:
            x = code.at("%x", code.times(block, 2 * depth * rows))
            sums = _sums(code, x, weights, depth, rows)
            biases = [code.get(FLOATS, code.at(bias, 64 * part)) for part in range(COLUMNS // 16)]
            first = code.at("%y", code.times(code.times(block, rows), width_bytes))
            y = code.at(first, code.times(column, 2))
            for row, of_row in enumerate(sums):
                target = code.at(y, code.times(width_bytes, row))
                for part, address in enumerate(of_row):
                    value = code.value(f"fadd {FLOATS} {code.get(FLOATS, address)}, {biases[part]}")
                    code.put_rounded(_gelu(code, value) if gelu else value, code.at(target, 32 * part))
    parameters = ", ".join(f"ptr noalias %{name}" for name in ("x", "weight", "bias", "y"))
    return code.function(name, f"{parameters}, i64 %width, i64 %blocks")


def _sums(code: Code, x: str, weights: str, depth: int, rows: int) -> list[list[str]]:
    """Return variables with the products of `rows` rows and COLUMNS columns."""
    parts = range(COLUMNS // 16)
    sums = [[code.variable(FLOATS, "zeroinitializer") for _ in parts] for _ in range(rows)]
    with code.loop(str(depth // 2), 1) as pair:
        source = code.at(weights, code.times(pair, 4 * COLUMNS))
        for part in parts:
            code.fetch(code.at(source, AHEAD_BYTES + 64 * part))
        columns = [code.get(WORDS, code.at(source, 64 * part)) for part in parts]
        inputs = code.at(x, code.times(pair, 4))
        for row, of_row in enumerate(sums):
            both = code.splat("i32", code.get("i32", code.at(inputs, 2 * depth * row)))
            for column, address in zip(columns, of_row, strict=True):
                code.put(FLOATS, code.dot(code.get(FLOATS, address), both, column), address)
    return sums


def _gelu(code: Code, x: str) -> str:
    """Return x * (1 + erf(x / √2)) / 2."""
    inside = x
    for compared, end in (("ogt", ERF_END), ("olt", -ERF_END)):
        beyond = code.value(f"fcmp {compared} {FLOATS} {inside}, {floats(end)}")
        inside = code.value(f"select <16 x i1> {beyond}, {FLOATS} {floats(end)}, {FLOATS} {inside}")
    square = code.value(f"fmul {FLOATS} {inside}, {inside}")
    square = code.fma(square, floats(2 / ERF_END**2), floats(-1.0))
    power = floats(ERF[0])
    for coefficient in ERF[1:]:
        power = code.fma(power, square, floats(coefficient))
    half = code.value(f"fmul {FLOATS} {x}, {floats(0.5)}")
    return code.fma(code.value(f"fmul {FLOATS} {power}, {inside}"), half, half)


def _pass(width: int, inner: int, rows: int) -> str:
    """Return the function `pass_{rows}`, as described at `BertPass`."""
    code = Code()
    padded = code.times("%blocks", rows)
    x = "%work"
    y = code.at(x, code.times(padded, 2 * width))
    inside = code.at(y, code.times(padded, 2 * width))
    attended = code.at(inside, code.times(padded, 6 * width))
    scratch = code.at(inside, code.times(padded, _inner_bytes(width, inner)))

    def product(name: str, x: str, at: tuple[str, str], y: str, columns: int) -> None:
        weight, bias = at
        code.do(f"call void @{name}(ptr {x}, ptr {weight}, ptr {bias}, ptr {y}, i64 {columns}, i64 %blocks)")

    def add_norm(y: str, x: str, at: tuple[str, str]) -> None:
        weight, bias = at
        sizes = f"i64 %rows, i64 {width}, float %epsilon"
        code.do(f"call void @add_norm(ptr {y}, ptr {x}, ptr {weight}, ptr {bias}, {sizes}, ptr {scratch})")

    _gather(code, "%words", "%ids", x, width)
    _gather(code, "%places", "%positions", y, width)
    add_norm(x, y, _addresses(code, "%table", 0))
    with code.loop("%layers", 1) as layer:
        table = code.at("%table", code.add(code.times(layer, 16 * len(BUFFERS)), 16))
        at = {name: _addresses(code, table, number) for number, name in enumerate(BUFFERS)}
        product(_name(width, rows), x, at["qkv"], inside, 3 * width)
        sizes = f"i64 %texts, i64 %heads, i64 {width}"
        code.do(f"call void @attend(ptr {inside}, ptr {attended}, ptr %ends, {sizes}, ptr {scratch})")
        product(_name(width, rows), attended, at["attended"], y, width)
        add_norm(y, x, at["attended_norm"])
        product(_name(width, rows, gelu=True), y, at["wide"], inside, inner)
        product(_name(inner, rows), inside, at["narrow"], x, width)
        add_norm(x, y, at["norm"])
    _pool(code, x, width)
    names = ("ids", "positions", "words", "places", "result", "work", "ends")
    parameters = ", ".join(f"ptr noalias %{name}" for name in names)
    counts = "i64 %texts, i64 %rows, i64 %blocks, ptr noalias %table, i64 %layers, i64 %heads, float %epsilon"
    counts += ", i64 %averaged, i64 %unit, ptr noalias %lengths"
    return code.function(f"pass_{rows}", f"{parameters}, {counts}")


def _gather(code: Code, source: str, numbers: str, target: str, width: int) -> None:
    """Copy the rows of these numbers, bfloat16 of `width`."""
    with code.loop("%rows", 1) as row:
        number = code.get("i64", code.at(numbers, code.times(row, 8)), 8)
        begin, end = (
            code.at(address, code.times(each, 2 * width))
            for address, each in ((source, number), (target, row))
        )
        with code.loop(str(2 * width), 64) as offset:
            code.put(WORDS, code.get(WORDS, code.at(begin, offset)), code.at(end, offset))


def _pool(code: Code, x: str, width: int) -> None:
    """Store the vector of each text: the mean of its first `%averaged` tokens, of length 1 if `%unit` is not 0."""
    is_unit = code.value("icmp ne i64 %unit, 0")
    with code.loop("%texts", 1) as text:
        start, end = bounds_of(code, text)
        tokens = code.least(code.value(f"sub nsw i64 {end}, {start}"), "%averaged")
        share = code.value(f"fdiv float 1.0, {code.value(f'sitofp i64 {tokens} to float')}")
        source = code.at(x, code.times(start, 2 * width))
        target = code.at("%result", code.times(text, 4 * width))
        squares = code.variable(FLOATS, "zeroinitializer")
        with code.loop(str(width), 16) as column:
            total = code.variable(FLOATS, "zeroinitializer")
            of_column = code.at(source, code.times(column, 2))
            with code.loop(tokens, 1) as token:
                value = code.get_rounded(code.at(of_column, code.times(token, 2 * width)))
                code.put(FLOATS, code.value(f"fadd {FLOATS} {code.get(FLOATS, total)}, {value}"), total)
            mean = code.value(f"fmul {FLOATS} {code.get(FLOATS, total)}, {code.splat('float', share)}")
            code.put(FLOATS, code.fma(mean, mean, code.get(FLOATS, squares)), squares)
            code.put(FLOATS, mean, code.at(target, code.times(column, 4)))
        length = code.value(f"call float @llvm.sqrt.f32(float {code.total(code.get(FLOATS, squares))})")
        code.put("float", length, code.at("%lengths", code.times(text, 4)))
        # A vector of zeros stays one, as in torch.
        length = code.value(f"call float @llvm.maxnum.f32(float {length}, float {one_float(SHORTEST)})")
        scale = code.value(f"fdiv float 1.0, {length}")
        scale = code.splat("float", code.value(f"select i1 {is_unit}, float {scale}, float 1.0"))
        with code.loop(str(width), 16) as column:
            address = code.at(target, code.times(column, 4))
            code.put(FLOATS, code.value(f"fmul {FLOATS} {code.get(FLOATS, address)}, {scale}"), address)


def _addresses(code: Code, table: str, number: int) -> tuple[str, str]:
    """Return the two addresses of an entry."""
    addresses: Sequence[str] = [
        code.get("ptr", code.at(table, 16 * number + 8 * part), 8) for part in range(2)
    ]
    return addresses[0], addresses[1]
