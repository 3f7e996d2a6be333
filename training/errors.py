"""Errors of training and promotion."""

from __future__ import annotations

from scannery.runtime.errors import NO, CodedError

__all__ = ["PromotionRefusedError"]


class PromotionRefusedError(CodedError, code="FAILED_PRECONDITION", exit_code=NO):
    """A model may not be promoted: it is not better, or was made for another index, encoder or analyser."""
