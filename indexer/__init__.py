"""Everything about an index: its spec, its segments, its versions in a store, and searching it.

Names are imported when one of them is first used (PEP 562): the modules of specs and of datapoints, which stand alone
in the client's package, need no ScaNN.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scannery.indexer.exports import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name == "exports" or (name.startswith("_") and name != "__all__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    exports = import_module("scannery.indexer.exports")
    if name != "__all__" and name not in exports.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(exports, name)


def __dir__() -> list[str]:
    try:
        names = import_module("scannery.indexer.exports").__all__
    except ModuleNotFoundError:  # the client's package alone
        names = []
    return sorted({*globals(), *names})
