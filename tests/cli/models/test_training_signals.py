"""What signals ask of a training."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from scannery.cli.commands.models import train
from scannery.cli.commands.models.train import _stopping


@pytest.fixture
def interrupting() -> Iterator[None]:
    """Have SIGINT raise KeyboardInterrupt, also in a process that was started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupting")
def test_a_signal_that_is_sent_twice_at_once_ends_after_the_step_and_a_later_one_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torchrun and what ends all processes of a service both send it: the second came before the checkpoint."""
    monkeypatch.setattr(train, "AGAIN_S", 0.1)
    with _stopping() as is_stopped:
        assert not is_stopped()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert is_stopped()
        time.sleep(0.15)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
