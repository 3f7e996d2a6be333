"""Sizes of memory as text, and the limit of a container."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scannery.runtime.errors import ConfigError
from scannery.runtime.memory import MIB, ProcessMemory, cgroup_limit, memory_text, parse_memory


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GiB", 2 << 30), ("2G", 2 << 30), ("1.5 gib", 3 << 29), ("512MiB", 512 << 20), ("1000000", 1_000_000)],
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1GiB", "2 GiBs", "much", "1e9", "9" * 40])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="memory: must be a size such as 2GiB") as caught:
        parse_memory(text)
    assert caught.value.field == "memory"


def test_sizes_are_written_with_units() -> None:
    assert [memory_text(size) for size in (5, 1536, 3 << 29, 300 << 20)] == [
        "5 B",
        "1.5 KiB",
        "1.5 GiB",
        "300 MiB",
    ]


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


NONE_OF_VERSION_1 = str((1 << 63) - 4096)


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/"}, None),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "max"}, None),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "1000"}, 1000),
        (  # a parent may have less
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/b/memory.max": "max",
                "sys/fs/cgroup/a/memory.max": "700",
                "sys/fs/cgroup/memory.max": "1000",
            },
            700,
        ),
        (  # in a container, the path may be that of the host
            {"proc/self/cgroup": "0::/docker/1f", "sys/fs/cgroup/memory.max": "1000"},
            1000,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu:/a\n4:memory:/a",
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "900",
            },
            900,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/a\n0::/",
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": NONE_OF_VERSION_1,
                "sys/fs/cgroup/memory/memory.limit_in_bytes": NONE_OF_VERSION_1,
            },
            None,
        ),
    ],
)
def test_the_limit_of_a_container_is_the_least_along_its_path(
    tmp_path: Path, files: dict[str, str], limit: int | None
) -> None:
    write(tmp_path, files)
    assert cgroup_limit(tmp_path) == limit


def test_bounds_of_workers_are_shares_of_the_ceiling() -> None:
    one, two = (ProcessMemory(workers=workers, ceiling_bytes=2048 * MIB) for workers in (1, 2))
    assert one.worker_requests_bytes == 2 * two.worker_requests_bytes == 128 * MIB
    for name in ("requests", "caches"):
        assert one.by_component[name] == two.by_component[name], "all workers together have the share"
    assert one.by_component["processes"] < two.by_component["processes"]
    for wanted in (1, 10**9):
        fitting = two.with_room(wanted)
        assert (
            fitting.room_bytes
            >= wanted
            > replace(fitting, ceiling_bytes=fitting.ceiling_bytes - 2).room_bytes
        )
    own = ProcessMemory(workers=2, ceiling_bytes=2048 * MIB, requests_bytes=5 * MIB)
    assert own.by_component["requests"] == 10 * MIB
    cold = ProcessMemory(workers=1, ceiling_bytes=2048 * MIB, cold_bytes=1 << 40)
    assert cold.by_component["caches"] - one.by_component["caches"] == 256 * MIB
