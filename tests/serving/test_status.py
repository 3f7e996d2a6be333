"""Every error has a status, and survives the way to the client."""

from __future__ import annotations

import inspect
from urllib.parse import quote

import grpc
import pytest

from scannery.client import errors as client_errors
from scannery.client.transport.status import error_from_status
from scannery.indexer import errors as indexer_errors
from scannery.runtime import errors as serving_errors
from scannery.serving.status import status_for_callers, status_of
from scannery.v1.types_pb2 import ErrorDetail

ERRORS = [
    kind
    for module in (serving_errors, indexer_errors)
    for _, kind in inspect.getmembers(module, inspect.isclass)
    if kind.__module__ == module.__name__
]
# Nobody who asks can cause these; if they come, something is broken.
INTERNAL = {"ServingError", "ConfigError", "BindError", "IndexerError", "InvalidSpecError", "BuildError"}


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_has_a_status_of_its_own(kind: type[Exception]) -> None:
    extra = {"reason": "x"} if kind is indexer_errors.InvalidRecordError else {}
    code, message, _ = status_of(kind("what happened", **extra))
    assert (code is grpc.StatusCode.INTERNAL) == (kind.__name__ in INTERNAL)
    assert ("what happened" in message) == (kind.__name__ not in INTERNAL)


def test_field_message_and_retry_hint_arrive() -> None:
    error = serving_errors.OverloadedError("too much", field="queries", retry_after_s=1.5)
    arrived = error_from_status(status_of(error)[0].name, *status_of(error)[1:])
    assert isinstance(arrived, client_errors.ResourceExhaustedError)
    assert (arrived.message, arrived.field, arrived.retry_after_s) == ("too much", "queries", 1.5)


def test_the_text_of_unexpected_errors_is_not_sent() -> None:
    code, message, detail = status_of(KeyError("/secret/path"))
    assert code is grpc.StatusCode.INTERNAL
    assert "secret" not in message + str(detail)


def test_long_and_odd_messages_fit_into_metadata() -> None:
    for text in ("x", "ü", "🎻", "\ud800"):
        error = serving_errors.InvalidRequestError(text * 100_000, field=text * 5000)
        _, message, detail = status_of(error)
        assert len(quote(message)) + 4 / 3 * detail.ByteSize() < 7000
        assert text == "\ud800" or detail.message.startswith(text)


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_every_status_has_an_error(code: grpc.StatusCode) -> None:
    error = error_from_status(code.name, "m", ErrorDetail(field="f", message="m"))
    known = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL}
    assert isinstance(error, client_errors.InternalError) == (code in known)
    assert (error.field, str(error)) == ("f", "m")


@pytest.mark.parametrize(
    "place",
    [
        "/var/lib/scannery/store/x.parquet",
        "gs://bucket/store",
        "file:///srv/a",
        "./store/log",
        "'/models/a b",
    ],
)
def test_callers_are_told_no_folder_of_the_server(place: str, caplog: pytest.LogCaptureFixture) -> None:
    error = serving_errors.EncoderUnavailableError(f"cannot load {place}: it is damaged", field="query")
    code, message, detail = status_for_callers(error)
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert message == detail.message
    assert place.strip("'").split()[0] not in message
    assert "it is damaged" in message
    number = message.rsplit(" ", 1)[-1].rstrip(")")
    [logged] = [record.getMessage() for record in caplog.records]
    assert number in logged
    assert place in logged


def test_callers_are_told_what_they_sent_and_names_of_models() -> None:
    for error in (
        serving_errors.InvalidRequestError.at("ids[0]", "'/a/b' is no id"),
        serving_errors.EncoderUnavailableError("there is sentence-transformers/all-MiniLM-L6-v2"),
    ):
        assert status_for_callers(error)[1] == str(error)
