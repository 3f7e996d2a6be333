"""Attention and layer normalisation of BERT in bfloat16, for processors with AVX512-BF16.

torch's `scaled_dot_product_attention` reaches a tenth of the processor's peak for texts of 128 tokens; here the scores
of eight tokens stay in registers and in the first cache, and nothing is computed for other texts of a batch.

Legend: S tokens of all texts, T tokens of a text, H heads, d dimensions of a head, D = H * d.
"""

from __future__ import annotations

import ctypes
import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scannery.embed.devices.llvm_ir import FLOATS, WORDS, Code, compiled, floats

__all__ = [
    "BertKernels",
    "add_norm_code",
    "attention_code",
    "bert_kernels",
    "bounds_of",
    "has_flag",
    "scratch_bytes",
]

ROWS = 8
"""Tokens whose attention is computed together: their sums fill half of the 32 vector registers."""
COLUMNS = 32
"""Tokens to which they attend together."""

NEVER = -1e30
"""Score of what lies behind the end of a text."""

EXP2 = (0.009618129107628477, 0.05550410866482158, 0.2402265069591007, 0.6931471805599453, 1.0)
"""Coefficients of 2^x for x from -0.5 to 0.5, highest power first; the error is 4e-6, that of bfloat16 4e-3."""


@dataclass(frozen=True)
class BertKernels:
    """The compiled functions for one size of heads; they take addresses, and release the interpreter's lock."""

    attend: Any
    """`(qkv, attended, ends, texts, heads, D, scratch)`: bfloat16 (S, 3 * D) and (S, D); ends: int32 (texts + 1,)."""
    add_norm: Any
    """`(y, x, weight, bias, rows, D, epsilon, scratch)`: y = norm(y + x); y and x bfloat16, weight and bias float32."""
    engine: Any
    """Keeps the machine code."""


@functools.cache
def bert_kernels(head_size: int) -> BertKernels | None:
    """Return the functions for heads of `head_size` dimensions; None if the processor or LLVM lacks what they need."""
    if head_size % 32 or not 32 <= head_size <= 128 or not has_flag("avx512_bf16"):
        return None
    try:
        engine = compiled([attention_code(head_size), add_norm_code()])
    except (
        RuntimeError,
        ImportError,
        AttributeError,
    ):  # an LLVM before 15 knows neither `ptr` nor these types
        return None
    pointer, size, single = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
    attend = ctypes.CFUNCTYPE(None, pointer, pointer, pointer, size, size, size, pointer)
    add_norm = ctypes.CFUNCTYPE(None, pointer, pointer, pointer, pointer, size, size, single, pointer)
    return BertKernels(
        attend(engine.get_function_address("attend")),
        add_norm(engine.get_function_address("add_norm")),
        engine,
    )


def scratch_bytes(longest: int, head_size: int, width: int) -> int:
    """Return the size of the memory that the functions work in, for texts of up to `longest` tokens."""
    columns = -(-longest // COLUMNS) * COLUMNS
    return max(columns * (4 * head_size + 6 * ROWS), 4 * width) + 64


def has_flag(name: str) -> bool:
    """Return whether the processor has the instructions that Linux calls by this name."""
    try:
        return name in Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return False


@dataclass(frozen=True)
class _Text:
    """What the parts of the attention share: places and sizes of one text, and of one of its heads."""

    head_size: int
    stride: str
    """Bytes from a token to the next in `qkv`, "attended": in `attended`."""
    attended_stride: str
    tokens: str
    last: str
    """Position of the last token."""
    columns: str
    """Tokens, rounded up to COLUMNS. What lies behind the end is a copy of the last token, with a weight of zero."""
    keys: str
    """Keys by dimension: a row for each pair of dimensions, with the pair of each token."""
    values: str
    """Values by pairs of tokens: for each dimension the values of both."""
    scores: str
    weights: str
    """ROWS rows of float32 scores, and of bfloat16 weights."""


def attention_code(head_size: int) -> str:
    """Return the function `attend`."""
    code = Code()
    stride, attended_stride = code.times("%width", 6), code.times("%width", 2)
    with code.loop("%texts", 1) as number:
        start, end = bounds_of(code, number)
        tokens = code.value(f"sub nsw i64 {end}, {start}")
        columns = code.value(f"and i64 {code.add(tokens, COLUMNS - 1)}, -{COLUMNS}")
        values = code.at("%scratch", code.times(columns, 2 * head_size))
        scores = code.at(values, code.times(columns, 2 * head_size))
        weights = code.at(scores, code.times(columns, 4 * ROWS))
        text = _Text(
            head_size, stride, attended_stride, tokens, code.add(tokens, -1), columns,
            "%scratch", values, scores, weights,
        )  # fmt: skip
        queries_of_text = code.at("%qkv", code.times(start, stride))
        attended_of_text = code.at("%attended", code.times(start, attended_stride))
        with code.loop("%heads", 1) as head:
            offset = code.times(head, 2 * head_size)
            queries = code.at(queries_of_text, offset)
            keys = code.at(queries, attended_stride)
            _transpose_keys(code, text, keys)
            _interleave_values(code, text, code.at(keys, attended_stride))
            with code.loop(tokens, ROWS) as first:
                # Behind the end of the text, the last token is computed again.
                rows = [code.least(code.add(first, row), text.last) for row in range(ROWS)]
                highest = _scores(code, text, [code.at(queries, code.times(row, stride)) for row in rows])
                sums = _softmax(code, text, highest)
                attended = code.at(attended_of_text, offset)
                targets = [code.at(attended, code.times(row, attended_stride)) for row in rows]
                _weighted_values(code, text, sums, targets)
    parameters = ", ".join(f"ptr noalias %{name}" for name in ("qkv", "attended", "ends"))
    return code.function("attend", f"{parameters}, i64 %texts, i64 %heads, i64 %width, ptr noalias %scratch")


def bounds_of(code: Code, text: str) -> tuple[str, str]:
    """Return the first token of a text, and the first one behind it, of `%ends`."""
    address = code.at("%ends", code.times(text, 4))
    start, end = (
        code.value(f"sext i32 {code.get('i32', each)} to i64") for each in (address, code.at(address, 4))
    )
    return start, end


def _transpose_keys(code: Code, text: _Text, keys: str) -> None:
    row_bytes = code.times(text.columns, 4)
    with code.loop(text.columns, 16) as first:
        tokens = [code.least(code.add(first, number), text.last) for number in range(16)]
        addresses = [code.at(keys, code.times(token, text.stride)) for token in tokens]
        for part in range(text.head_size // 32):
            block = _transposed(
                code, [code.get(WORDS, code.at(address, 64 * part), 2) for address in addresses]
            )
            target = code.at(text.keys, code.times(first, 4))
            for number, words in enumerate(block):
                code.put(WORDS, words, code.at(target, code.times(row_bytes, number + 16 * part)))


def _transposed(code: Code, rows: list[str]) -> list[str]:
    """Return the transpose of 16 × 16 words: blocks of 1, 2, 4 and 8 change places across the diagonal."""
    for size in (1, 2, 4, 8):
        low = [16 + (lane ^ size) if lane & size else lane for lane in range(16)]
        high = [16 + lane if lane & size else lane | size for lane in range(16)]
        for row in range(16):
            if not row & size:
                pair = rows[row], rows[row | size]
                rows[row], rows[row | size] = (code.shuffle("i32", *pair, lanes) for lanes in (low, high))
    return rows


def _interleave_values(code: Code, text: _Text, values: str) -> None:
    lanes = [offset for lane in range(16) for offset in (lane, 16 + lane)]
    with code.loop(text.columns, 2) as first:
        tokens = code.least(first, text.last), code.least(code.add(first, 1), text.last)
        addresses = [code.at(values, code.times(token, text.stride)) for token in tokens]
        target = code.at(text.values, code.times(first, 2 * text.head_size))
        for part in range(text.head_size // 16):
            a, b = (code.get("<16 x i16>", code.at(address, 32 * part), 2) for address in addresses)
            code.put("<32 x i16>", code.shuffle("i16", a, b, lanes), code.at(target, 64 * part))


def _scores(code: Code, text: _Text, queries: list[str]) -> list[str]:
    """Store the scores of ROWS queries, scaled for 2^x; return the highest of each, for each of 16 lanes."""
    row_bytes = code.times(text.columns, 4)
    end = code.splat("i32", code.value(f"trunc i64 {text.tokens} to i32"))
    scale = floats(math.log2(math.e) / math.sqrt(text.head_size))
    highest = [code.variable(FLOATS, floats(NEVER)) for _ in queries]
    with code.loop(text.columns, COLUMNS) as first:
        sums = _products(code, text, queries, code.at(text.keys, code.times(first, 4)))
        positions = code.splat("i32", code.value(f"trunc i64 {first} to i32"))
        target = code.at(text.scores, code.times(first, 4))
        for part in range(COLUMNS // 16):
            lanes = ", ".join(f"i32 {16 * part + lane}" for lane in range(16))
            inside = code.value(
                f"icmp slt {WORDS} {code.value(f'add {WORDS} {positions}, <{lanes}>')}, {end}"
            )
            for row in range(ROWS):
                score = code.value(f"fmul {FLOATS} {code.get(FLOATS, sums[row][part])}, {scale}")
                score = code.value(f"select <16 x i1> {inside}, {FLOATS} {score}, {FLOATS} {floats(NEVER)}")
                code.put(FLOATS, score, code.at(target, code.add(code.times(row_bytes, row), 64 * part)))
                before = code.get(FLOATS, highest[row])
                higher = code.value(f"fcmp ogt {FLOATS} {score}, {before}")
                code.put(
                    FLOATS,
                    code.value(f"select <16 x i1> {higher}, {FLOATS} {score}, {FLOATS} {before}"),
                    highest[row],
                )
    return highest


def _products(code: Code, text: _Text, queries: list[str], keys: str) -> list[list[str]]:
    """Return variables with the products of ROWS queries and COLUMNS keys."""
    sums = [[code.variable(FLOATS, "zeroinitializer") for _ in range(COLUMNS // 16)] for _ in queries]
    row_bytes = code.times(text.columns, 4)
    with code.loop(str(text.head_size // 2), 1) as pair:
        row = code.at(keys, code.times(pair, row_bytes))
        columns = [code.get(WORDS, code.at(row, 64 * part)) for part in range(COLUMNS // 16)]
        offset = code.times(pair, 4)
        for query, of_query in zip(queries, sums, strict=True):
            both = code.splat("i32", code.get("i32", code.at(query, offset), 2))
            for part, address in zip(columns, of_query, strict=True):
                code.put(FLOATS, code.dot(code.get(FLOATS, address), both, part), address)
    return sums


def _softmax(code: Code, text: _Text, highest: list[str]) -> list[str]:
    """Store the weights of ROWS rows, not yet divided by their sums; return variables with the sums by lane."""
    tops = []
    for address in highest:
        top = f"call float @llvm.vector.reduce.fmax.v16f32({FLOATS} {code.get(FLOATS, address)})"
        tops.append(code.splat("float", code.value(top)))
    sums = [code.variable(FLOATS, "zeroinitializer") for _ in highest]
    score_bytes, weight_bytes = code.times(text.columns, 4), code.times(text.columns, 2)
    with code.loop(text.columns, 16) as first:
        for row, (top, address) in enumerate(zip(tops, sums, strict=True)):
            at = code.add(code.times(score_bytes, row), code.times(first, 4))
            score = code.get(FLOATS, code.at(text.scores, at))
            weight = _exp2(code, code.value(f"fsub {FLOATS} {score}, {top}"))
            code.put(FLOATS, code.value(f"fadd {FLOATS} {code.get(FLOATS, address)}, {weight}"), address)
            at = code.add(code.times(weight_bytes, row), code.times(first, 2))
            code.put_rounded(weight, code.at(text.weights, at))
    return sums


def _exp2(code: Code, x: str) -> str:
    """Return 2^x for x up to 0; below -126, where float32 ends, as of -126."""
    low = code.value(f"fcmp olt {FLOATS} {x}, {floats(-126.0)}")
    x = code.value(f"select <16 x i1> {low}, {FLOATS} {floats(-126.0)}, {FLOATS} {x}")
    whole = code.value(f"call {FLOATS} @llvm.nearbyint.v16f32({FLOATS} {x})")
    fraction = code.value(f"fsub {FLOATS} {x}, {whole}")
    power = floats(EXP2[0])
    for coefficient in EXP2[1:]:
        power = code.fma(power, fraction, floats(coefficient))
    exponent = code.value(f"shl {WORDS} {code.value(f'fptosi {FLOATS} {whole} to {WORDS}')}, {_words(23)}")
    bits = code.value(f"add {WORDS} {code.value(f'bitcast {FLOATS} {power} to {WORDS}')}, {exponent}")
    return code.value(f"bitcast {WORDS} {bits} to {FLOATS}")


def _words(value: int) -> str:
    return f"<{', '.join([f'i32 {value}'] * 16)}>"


def _weighted_values(code: Code, text: _Text, sums: list[str], attended: list[str]) -> None:
    """Store the means of the values, weighted, of ROWS rows."""
    vectors = text.head_size // 16
    together = min(ROWS, 16 // vectors)  # 16 registers of sums
    weight_bytes = code.times(text.columns, 2)
    for start in range(0, ROWS, together):
        rows = range(start, start + together)
        means = [[code.variable(FLOATS, "zeroinitializer") for _ in range(vectors)] for _ in rows]
        with code.loop(text.columns, 2) as first:
            source = code.at(text.values, code.times(first, 2 * text.head_size))
            values = [code.get(WORDS, code.at(source, 64 * part)) for part in range(vectors)]
            offset = code.times(first, 2)
            for row, of_row in zip(rows, means, strict=True):
                at = code.at(text.weights, code.add(code.times(weight_bytes, row), offset))
                both = code.splat("i32", code.get("i32", at))
                for part, address in zip(values, of_row, strict=True):
                    code.put(FLOATS, code.dot(code.get(FLOATS, address), both, part), address)
        for row, of_row in zip(rows, means, strict=True):
            total = code.total(code.get(FLOATS, sums[row]))
            share = code.splat("float", code.value(f"fdiv float 1.0, {total}"))
            for number, address in enumerate(of_row):
                mean = code.value(f"fmul {FLOATS} {code.get(FLOATS, address)}, {share}")
                code.put_rounded(mean, code.at(attended[row], 32 * number))


def add_norm_code() -> str:
    """Return the function `add_norm`."""
    code = Code()
    count = code.value("sitofp i64 %width to float")
    row_bytes = code.times("%width", 2)
    with code.loop("%rows", 1) as row:
        y, x = (code.at(address, code.times(row, row_bytes)) for address in ("%y", "%x"))
        total = code.variable(FLOATS, "zeroinitializer")
        with code.loop("%width", 16) as at:
            first, second = (code.get_rounded(code.at(address, code.times(at, 2))) for address in (y, x))
            both = code.value(f"fadd {FLOATS} {first}, {second}")
            code.put(FLOATS, both, code.at("%scratch", code.times(at, 4)))
            code.put(FLOATS, code.value(f"fadd {FLOATS} {code.get(FLOATS, total)}, {both}"), total)
        mean = code.splat("float", code.value(f"fdiv float {code.total(code.get(FLOATS, total))}, {count}"))
        squares = code.variable(FLOATS, "zeroinitializer")
        with code.loop("%width", 16) as at:
            value = code.get(FLOATS, code.at("%scratch", code.times(at, 4)))
            centred = code.value(f"fsub {FLOATS} {value}, {mean}")
            code.put(FLOATS, code.fma(centred, centred, code.get(FLOATS, squares)), squares)
        variance = code.value(f"fdiv float {code.total(code.get(FLOATS, squares))}, {count}")
        deviation = f"call float @llvm.sqrt.f32(float {code.value(f'fadd float {variance}, %epsilon')})"
        scale = code.splat("float", code.value(f"fdiv float 1.0, {code.value(deviation)}"))
        with code.loop("%width", 16) as at:
            offset = code.times(at, 4)
            value, weight, bias = (
                code.get(FLOATS, code.at(address, offset)) for address in ("%scratch", "%weight", "%bias")
            )
            centred = code.value(f"fsub {FLOATS} {value}, {mean}")
            scaled = code.value(f"fmul {FLOATS} {centred}, {scale}")
            code.put_rounded(code.fma(scaled, weight, bias), code.at(y, code.times(at, 2)))
    parameters = ", ".join(f"ptr noalias %{name}" for name in ("y", "x", "weight", "bias"))
    return code.function(
        "add_norm", f"{parameters}, i64 %rows, i64 %width, float %epsilon, ptr noalias %scratch"
    )
