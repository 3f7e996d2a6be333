"""Errors of `scannery.embed`.

EmbedError
├── ModelNotFoundError         no local folder, installed package or hub cache has the model
├── InvalidModelError          the folder is not a usable model: damaged, incomplete, or it needs its own code
├── InvalidArgumentError       an option is not valid for this model; `field` names it
├── InvalidTextError           one text cannot be embedded; `index` is its position in the call
├── FingerprintMismatchError   the encoder is not the one that made the vectors
└── DeviceError                the device is absent, misconfigured, or out of memory
    └── RecompilationError     a batch has none of the shapes that were compiled
"""

from __future__ import annotations

from scannery.runtime.errors import CodedError

__all__ = [
    "DeviceError",
    "EmbedError",
    "FingerprintMismatchError",
    "InvalidArgumentError",
    "InvalidModelError",
    "InvalidTextError",
    "ModelNotFoundError",
    "RecompilationError",
]


class EmbedError(CodedError, private=True):
    """Base of every error that `scannery.embed` raises on purpose."""


class ModelNotFoundError(EmbedError, LookupError, code="NOT_FOUND"):
    """The model was not found; the message names the places that were searched."""


class InvalidModelError(EmbedError, ValueError):
    """The model folder cannot be used; the message gives the reason."""


class InvalidArgumentError(EmbedError, ValueError, code="INVALID_ARGUMENT"):
    """An option is out of range for this model; the message gives the range and the value got."""


class InvalidTextError(EmbedError, ValueError, code="INVALID_ARGUMENT"):
    """One text cannot be embedded.

    Attributes:
        index: position of the text in the sequence that was passed.
        reason: the message without that position.

    """

    def __init__(self, reason: str, *, index: int, field: str | None = "text") -> None:
        super().__init__(f"text {index}: {reason}", field=field)
        self.index, self.reason = index, reason


class FingerprintMismatchError(EmbedError, code="FAILED_PRECONDITION"):
    """The encoder is not the one that made the vectors; the message names both."""


class DeviceError(EmbedError, RuntimeError):
    """The device is absent, misconfigured or out of memory even for a single text."""


class RecompilationError(DeviceError):
    """A batch has a shape that was not compiled beforehand."""
