"""Write small functions in LLVM's language, and compile them for this processor.

numba brings LLVM along, so a kernel needs no compiler on the machine; numba itself has no bfloat16.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = ["BFLOATS", "FLOATS", "PAIRS", "WORDS", "Code", "compiled", "floats", "one_float"]

FLOATS, WORDS, BFLOATS, PAIRS = "<16 x float>", "<16 x i32>", "<16 x bfloat>", "<32 x bfloat>"
"""Types of vectors: of 16 float32, 16 int32, 16 bfloat16 and 16 pairs of bfloat16."""

DECLARATIONS = f"""
declare i64 @llvm.smin.i64(i64, i64)
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
declare float @llvm.sqrt.f32(float)
declare float @llvm.maxnum.f32(float, float)
declare float @llvm.vector.reduce.fmax.v16f32({FLOATS})
declare float @llvm.vector.reduce.fadd.v16f32(float, {FLOATS})
declare {FLOATS} @llvm.fma.v16f32({FLOATS}, {FLOATS}, {FLOATS})
declare {FLOATS} @llvm.nearbyint.v16f32({FLOATS})
declare {FLOATS} @llvm.x86.avx512bf16.dpbf16ps.512({FLOATS}, {PAIRS}, {PAIRS})
"""


class Code:
    """The body of a function, written from its first instruction to its last.

    Values are names such as `%v3`, or constants. Offsets and sizes are in bytes.
    """

    def __init__(self) -> None:
        """Start with an empty body."""
        self._variables: list[str] = []
        self._lines: list[str] = []
        self._names = 0

    def function(self, name: str, parameters: str) -> str:
        """Return the function with this body."""
        lines = "\n".join(["entry:", *self._variables, *self._lines, "  ret void"])
        return f"define void @{name}({parameters}) {{\n{lines}\n}}\n"

    def do(self, instruction: str) -> None:
        """Add an instruction without a value."""
        self._lines.append(f"  {instruction}")

    def value(self, instruction: str) -> str:
        """Add an instruction, and return the name of its value."""
        self._names += 1
        name = f"%v{self._names}"
        self.do(f"{name} = {instruction}")
        return name

    def variable(self, kind: str, value: str) -> str:
        """Return a new variable with this value; LLVM keeps it in a register."""
        self._names += 1
        name = f"%v{self._names}"
        self._variables.append(f"  {name} = alloca {kind}")
        self.put(kind, value, name)
        return name

    def get(self, kind: str, address: str, align: int = 4) -> str:
        """Return what a variable or a place in memory holds."""
        return self.value(f"load {kind}, ptr {address}, align {align}")

    def put(self, kind: str, value: str, address: str, align: int = 4) -> None:
        """Store a value."""
        self.do(f"store {kind} {value}, ptr {address}, align {align}")

    def fetch(self, address: str) -> None:
        """Have the line of cache of a place read, which need not exist."""
        self.do(f"call void @llvm.prefetch.p0(ptr {address}, i32 0, i32 3, i32 1)")

    @contextmanager
    def loop(self, end: str, step: int) -> Iterator[str]:
        """Repeat what is added within the context; give the counter, from 0 up to `end`."""
        self._names += 1
        number, counter = self._names, self.variable("i64", "0")
        self._lines += [f"  br label %head{number}", f"head{number}:"]
        at = self.get("i64", counter)
        inside = self.value(f"icmp slt i64 {at}, {end}")
        self._lines += [f"  br i1 {inside}, label %body{number}, label %end{number}", f"body{number}:"]
        yield at
        self.put("i64", self.add(at, step), counter)
        self._lines += [f"  br label %head{number}", f"end{number}:"]

    def at(self, address: str, offset: str | int) -> str:
        """Return the place `offset` bytes behind another."""
        return self.value(f"getelementptr i8, ptr {address}, i64 {offset}")

    def add(self, a: str, b: str | int) -> str:
        """Return the sum of two int64."""
        return self.value(f"add nsw i64 {a}, {b}")

    def times(self, a: str, b: str | int) -> str:
        """Return the product of two int64."""
        return self.value(f"mul nsw i64 {a}, {b}")

    def least(self, a: str, b: str) -> str:
        """Return the smaller of two int64."""
        return self.value(f"call i64 @llvm.smin.i64(i64 {a}, i64 {b})")

    def splat(self, kind: str, value: str) -> str:
        """Return a vector of 16 times the same float or i32."""
        element = self.value(f"insertelement <16 x {kind}> poison, {kind} {value}, i64 0")
        zeros = "<16 x i32> zeroinitializer"
        return self.value(f"shufflevector <16 x {kind}> {element}, <16 x {kind}> poison, {zeros}")

    def shuffle(self, kind: str, a: str, b: str, lanes: Sequence[int]) -> str:
        """Return the lanes of two vectors of 16, those of the second counted from 16."""
        mask = ", ".join(f"i32 {lane}" for lane in lanes)
        return self.value(
            f"shufflevector <16 x {kind}> {a}, <16 x {kind}> {b}, <{len(lanes)} x i32> <{mask}>"
        )

    def fma(self, a: str, b: str, added: str) -> str:
        """Return `one * other + added` of floats."""
        return self.value(f"call {FLOATS} @llvm.fma.v16f32({FLOATS} {a}, {FLOATS} {b}, {FLOATS} {added})")

    def dot(self, sums: str, a: str, b: str) -> str:
        """Return the sums with the products of pairs of bfloat16 added; the pairs are given as WORDS."""
        a, b = (self.value(f"bitcast {WORDS} {words} to {PAIRS}") for words in (a, b))
        product = f"{FLOATS} @llvm.x86.avx512bf16.dpbf16ps.512"
        return self.value(f"call {product}({FLOATS} {sums}, {PAIRS} {a}, {PAIRS} {b})")

    def total(self, values: str) -> str:
        """Return the sum of a vector of floats."""
        return self.value(f"call reassoc float @llvm.vector.reduce.fadd.v16f32(float 0.0, {FLOATS} {values})")

    def get_rounded(self, address: str) -> str:
        """Return 16 bfloat16 from memory, as floats."""
        return self.value(f"fpext {BFLOATS} {self.get(BFLOATS, address, 2)} to {FLOATS}")

    def put_rounded(self, values: str, address: str) -> None:
        """Store floats as bfloat16."""
        self.put(BFLOATS, self.value(f"fptrunc {FLOATS} {values} to {BFLOATS}"), address, 2)


def floats(value: float) -> str:
    """Return the constant vector of 16 times the same float32."""
    return f"<{', '.join([f'float {one_float(value)}'] * 16)}>"


def one_float(value: float) -> str:
    """Return a constant float32, rounded: LLVM takes only values that float32 has."""
    [single] = struct.unpack("<f", struct.pack("<f", value))
    [bits] = struct.unpack("<Q", struct.pack("<d", single))
    return f"0x{bits:016X}"


def compiled(functions: Sequence[str]) -> Any:
    """Return an engine with the compiled functions; their machine code lives as long as the engine.

    Raises:
        RuntimeError, ImportError, AttributeError: this version of LLVM cannot compile them.

    """
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly("".join(functions) + DECLARATIONS)
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2, jit=True
    )
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_unrolling = False  # what gains from it is unrolled already
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine
