"""Scans in pages: of one state, of what a caller sees; the tokens of another caller are refused."""

from __future__ import annotations

from scannery.v1 import search_pb2
from tests.cluster.questions import any_filter
from tests.rights.principals import CALLERS, Caller
from tests.rights.questions import INDEX
from tests.rights.world import LeakError, Refusal, World
from tests.rights.writes import write

__all__ = ["scan"]


def scan(world: World, caller: Caller) -> str:
    """Read what a filter allows in pages, while the index changes; return the method."""
    chosen = world.chosen
    request = search_pb2.ScanRequest(
        index=INDEX, where=any_filter(chosen) if chosen.random() < 0.5 else None, page_size=chosen.choice([1, 5, 20]),
        return_fields=["id"],
    )  # fmt: skip
    whole = search_pb2.ScanRequest()
    whole.CopyFrom(request)
    whole.page_size = 1000
    expected = world.twin_answer(caller, "Scan", whole)
    names: list[str] = []
    for number in range(world.rows + 1):
        page = world.wire.ask(caller, "Scan", request)
        if isinstance(page, Refusal) and page == expected:
            return "Scan"
        if isinstance(page, Refusal) or page.total != expected.total:
            raise LeakError(f"{caller.name}: page {number} of {request}: {page}, expected {expected}")
        names += [point.id for point in page.datapoints]
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
        if number == 0:
            _of_another(world, caller, request)
            if chosen.random() < 0.5:
                write(world, None)
    if sorted(names) != sorted(point.id for point in expected.datapoints):
        raise LeakError(f"{caller.name}: pages of {request} have {names}, expected {expected}")
    return "Scan"


def _of_another(world: World, caller: Caller, request: search_pb2.ScanRequest) -> None:
    for each in (None, world.chosen.choice(CALLERS)):
        answer = world.wire.ask(each, "Scan", request)
        if each is not caller and not (isinstance(answer, Refusal) and answer.code == "INVALID_ARGUMENT"):
            raise LeakError(f"{each}: the token of {caller.name} was answered {answer}")
