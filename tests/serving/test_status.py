"""Every error has a status, and survives the way to the client."""

from __future__ import annotations

import inspect
from urllib.parse import quote

import grpc
import pytest

from scannery.client import errors as client_errors
from scannery.client.transport.retries import error_from_status
from scannery.indexer import errors as indexer_errors
from scannery.runtime import errors as serving_errors
from scannery.serving.status import status_for_callers, status_of
from scannery.serving.transport.grpc.call_limits import status_details
from scannery.v1.types_pb2 import ErrorDetail

ERRORS = [
    kind
    for module in (serving_errors, indexer_errors)
    for _, kind in inspect.getmembers(module, inspect.isclass)
    if kind.__module__ == module.__name__ and issubclass(kind, serving_errors.CodedError)
]
# Nobody who asks can cause these; if they come, something is broken.
INTERNAL = {
    "CodedError", "ServingError", "ConfigError", "BindError", "IndexerError", "InvalidSpecError", "BuildError",
}  # fmt: skip


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


def test_errors_have_the_form_of_googles_model() -> None:
    rpc = pytest.importorskip("google.rpc.error_details_pb2")
    Status = pytest.importorskip("google.rpc.status_pb2").Status
    refused = serving_errors.OverloadedError("too much", field="queries", retry_after_s=1.5)
    status = Status.FromString(status_details(*status_of(refused), refused))
    assert (status.code, status.message) == (8, "too much")
    info, retry, own = rpc.ErrorInfo(), rpc.RetryInfo(), ErrorDetail()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == ("OVERLOADED", "scannery")
    assert status.details[1].Unpack(own)
    assert own == status_of(refused)[2]
    assert status.details[2].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 1500
    assert len(status.details) == 3

    invalid = serving_errors.InvalidRequestError("k: must be positive", field="options.k")
    status = Status.FromString(status_details(*status_of(invalid), invalid))
    request = rpc.BadRequest()
    assert status.details[2].Unpack(request)
    assert [each.field for each in request.field_violations] == ["options.k"]

    defect = KeyError("x")
    status = Status.FromString(status_details(*status_of(defect), defect))
    assert status.details[0].Unpack(info)
    assert info.reason == "INTERNAL"


def test_the_text_of_unexpected_errors_is_not_sent() -> None:
    code, message, detail = status_of(KeyError("/secret/path"))
    assert code is grpc.StatusCode.INTERNAL
    assert "secret" not in message + str(detail)


def test_long_and_odd_messages_fit_into_metadata() -> None:
    for text in ("x", "ü", "🎻", "\ud800"):
        error = serving_errors.InvalidRequestError(text * 100_000, field=text * 5000)
        code, message, detail = status_of(error)
        details = status_details(code, message, detail, error)
        assert len(quote(message)) + 4 / 3 * (detail.ByteSize() + len(details)) < 7700
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
