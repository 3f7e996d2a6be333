"""Machines that a build can run on: how fast each embeds, and its price per hour.

Every figure is an estimate (E) or a measurement (M) for all-MiniLM-L6-v2 and passages of 128 tokens. Prices are list
prices on demand, from memory, in US dollars: give your own.
"""

from __future__ import annotations

import dataclasses

__all__ = [
    "MACHINES",
    "REFERENCE_FLOPS",
    "REFERENCE_TOKENS",
    "SEGMENT_DIMENSIONS",
    "SEGMENT_ROWS_PER_S",
    "SEGMENT_VCPUS",
    "Machine",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """A kind of worker, with its price."""

    name: str
    what: str
    passages_per_s: float
    """Embedded per second by one worker: the slower of device and host."""

    price_per_h: float
    """Of one worker, in US dollars."""

    vcpus: int
    basis: str
    """M: the speed of one vCPU is measured, on two; E: the speed is estimated."""


MACHINES = {
    machine.name: machine
    for machine in (
        Machine(name="cpu-bf16", what="8 vCPUs that multiply bfloat16 (c3, c4, c3d)", passages_per_s=8 * 56,
                price_per_h=8 * 0.07, vcpus=8, basis="M"),
        Machine(name="cpu-f32", what="8 vCPUs without bfloat16 (n2, e2)", passages_per_s=8 * 33,
                price_per_h=8 * 0.07, vcpus=8, basis="M"),
        Machine(name="l4", what="one L4 with 8 vCPUs (g2-standard-8)", passages_per_s=2_200,
                price_per_h=0.85, vcpus=8, basis="E"),
        Machine(name="h100", what="one H100 with 26 vCPUs (a3-highgpu-1g)", passages_per_s=2_900,
                price_per_h=11.0, vcpus=26, basis="E"),
        Machine(name="v5e", what="one chip of TPU v5e (ct5lp-hightpu-1t)", passages_per_s=2_500,
                price_per_h=1.2, vcpus=24, basis="E"),
    )
}  # fmt: skip
"""By name. The accelerators are fed by their host, which is the slower side: alone, an L4 would embed about 9,500
passages per second, an H100 60,000, a v5e chip 15,000 (E)."""

REFERENCE_FLOPS = 2 * 12 * 6 * 384**2
"""Of all-MiniLM-L6-v2 for one token, in its linear layers; a larger model is slower in proportion."""

REFERENCE_TOKENS = 128

SEGMENT_VCPUS, SEGMENT_DIMENSIONS = 8, 384

SEGMENT_ROWS_PER_S = 3_500.0
"""Rows of a shard built per second by one worker with SEGMENT_VCPUS, of SEGMENT_DIMENSIONS (E). Measured are 0.57 ms of
processor time a row for 250,000 rows with the words of their texts; a row of a shard of a million needs about twice
that, and about half of the cores are used."""
