"""The table that processes share: places, words, and numbers that belong to a word."""

from __future__ import annotations

import os
import signal
import time

import pytest

from scannery.runtime.sharing import NAMES, NUMBERS, SharedBlobs, SharedReservation, SharedTable


def test_a_name_keeps_its_place_and_a_full_table_has_none() -> None:
    table = SharedTable()
    places = {table.place(f"index-{number}") for number in range(NAMES)}
    assert places == set(range(NAMES))
    assert table.place("index-7") == table.place("index-7")
    assert table.place("one more") is None


def test_numbers_are_read_by_other_processes_while_their_word_stands() -> None:
    table = SharedTable(2)
    place = table.place("live")
    assert place is not None
    table.write(0, place, 5, [1.0, 2.0])
    child = os.fork()
    if child == 0:
        table.words[place] = 6
        table.write(1, place, 5, [10.0])
        os._exit(0)
    os.waitpid(child, 0)
    assert table.words[place] == 6
    assert [row[:2] for row in table.read(place, 5)] == [(1.0, 2.0), (10.0, 0.0)]
    assert {len(row) for row in table.read(place, 5)} == {NUMBERS}
    table.write(1, place, 6, [0.5])
    assert [row[0] for row in table.read(place, 6)] == [0.5], "numbers of another word do not count"


def test_bytes_that_do_not_fit_leave_the_slot_as_it_is() -> None:
    blobs = SharedBlobs(2, 64)
    assert blobs.write(1, b"kept")
    assert not blobs.write(1, bytes(100))
    assert (blobs.read(0), blobs.read(1)) == (b"", b"kept")


@pytest.mark.system
def test_a_released_place_is_for_another_name() -> None:
    table = SharedTable()
    for number in range(10 * NAMES):
        place = table.place(f"index-{number}")
        assert place is not None
        assert table.words[place] == 0, "nothing is left of the name before"
        table.words[place] = number + 1
        table.release(f"index-{number}")
    for number in range(NAMES):
        table.place(f"index-{number}")
    table.release("unknown")
    assert table.place("one more") is None
    table.release("index-3")
    assert table.place("index-9") != table.place("one more") is not None


@pytest.mark.system
def test_processes_take_places_at_once_without_sharing_one() -> None:
    table = SharedTable(4)
    children = []
    for process in range(4):
        child = os.fork()
        if child == 0:
            for number in range(200):
                # Half of the names are those of the others, in another order.
                table.place(f"all-{(number * 7 + process * 50) % 200}")
                table.place(f"{process}-{number}")
                table.release(f"{process}-{number}")
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    places = [table.place(f"all-{number}") for number in range(200)]
    assert len({*places}) == 200
    assert table.place("one more") not in places


@pytest.mark.system
def test_numbers_that_are_being_written_or_whose_writer_was_killed_are_not_read() -> None:
    table = SharedTable(1)
    place = table.place("torn")
    assert place is not None
    child = os.fork()
    if child == 0:
        number = 0.0
        while True:  # the same state, so the same tag
            number += 1
            table.write(0, place, 5, [number] * NUMBERS)
    until = time.monotonic() + 0.7
    rows = []
    while time.monotonic() < until:
        rows += table.read(place, 5)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert rows
    assert all(len(set(row)) == 1 for row in [*rows, *table.read(place, 5)])


def test_one_process_reserves_at_a_time_and_its_end_releases_it() -> None:
    reservation = SharedReservation()
    assert reservation.amount == 0
    release = reservation.take(7)
    assert release is not None
    assert reservation.amount == 7 and reservation.take(1) is None
    ready, end = os.pipe(), os.pipe()
    release()
    if not (child := os.fork()):
        reservation.take(9)
        os.write(ready[1], b"1" if reservation.amount == 9 else b"0")
        os.read(end[0], 1)
        os._exit(0)
    try:
        assert os.read(ready[0], 1) == b"1"
        assert reservation.amount == 9 and reservation.take(1) is None
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for descriptor in (*ready, *end):
            os.close(descriptor)
    assert reservation.amount == 0
    assert reservation.take(2) is not None
