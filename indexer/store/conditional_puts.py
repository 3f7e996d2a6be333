"""Conditional puts into a bucket whose outcome may be unknown.

A put may be done although its answer is an error, or is lost. The put that is then repeated finds its own object, and
must not take it for that of another writer. obstore repeats puts itself and does not tell, so these are repeated here.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable

from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError

__all__ = ["RETRY_S", "put_once"]

RETRY_S = 60.0
"""Seconds from the first attempt in which a put is repeated."""
_FIRST_WAIT_S, _MOST_WAIT_S = 0.1, 5.0


def put_once(put: Callable[[], object], is_ours: Callable[[], bool]) -> None:
    """Put an object under a condition; repeat it with growing pauses while the bucket fails.

    Args:
        put: one attempt, which obstore does not repeat.
        is_ours: whether the bucket has the object of this put; called if the condition failed after an attempt of
            unknown outcome.

    Raises:
        AlreadyExistsError, PreconditionError: the condition does not hold.
        GenericError: the bucket failed for `RETRY_S`; the object may have been put.

    """
    end_s, wait_s, unknown = time.monotonic() + RETRY_S, _FIRST_WAIT_S, False
    while True:
        try:
            put()
            return
        except (AlreadyExistsError, PreconditionError):
            if not unknown:
                raise
            # Without an object an attempt is still under way: S3 refuses concurrent puts (409), and asks to repeat.
            with contextlib.suppress(FileNotFoundError):
                if is_ours():
                    return
                raise
            if time.monotonic() + wait_s > end_s:
                raise
        except GenericError:
            unknown = True
            if time.monotonic() + wait_s > end_s:
                raise
        time.sleep(wait_s * random.uniform(0.5, 1))
        wait_s = min(2 * wait_s, _MOST_WAIT_S)
