"""Errors of training and promotion."""

from __future__ import annotations

from scannery.runtime.errors import NO, NOT_NOW, USAGE, CodedError

__all__ = ["DivergedError", "PromotionRefusedError", "ReplicaLostError", "StoppedError"]


class PromotionRefusedError(CodedError, code="FAILED_PRECONDITION", exit_code=NO):
    """A model may not be promoted: it is not better, or was made for another index, encoder or analyser."""


class DivergedError(CodedError, code="INVALID_ARGUMENT", exit_code=USAGE):
    """A training has no finite loss any more: its settings do not suit the model."""


class StoppedError(CodedError, code="CANCELLED", exit_code=NOT_NOW):
    """A training was stopped by a signal; the same command goes on at its last checkpoint."""


class ReplicaLostError(CodedError, code="UNAVAILABLE", exit_code=NOT_NOW):
    """Another process of a training ended, or cannot be reached; the same command goes on at its last checkpoint."""
