"""The old name of the frameworks' modules in `scannery.bridges`; it goes with the next release.

`scannery.adapters.langchain` is the same module as `scannery.bridges.langchain`, so that their classes are the same.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__: list[str] = []

_MODULES = ("attributes", "beam_rag", "connection", "haystack", "ids", "langchain", "llama_index", "mteb")
__path__: list[str] = []  # makes this module a package, all of whose modules `_Renamed` finds


class _Renamed(MetaPathFinder, Loader):
    """Finds modules under the new name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module of `scannery.adapters` is loaded; None: it is none."""
        parent, _, module = fullname.partition(f"{__name__}.")
        if parent or module.partition(".")[0] not in _MODULES:
            return None
        return ModuleSpec(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of the new name in the place of an empty one."""
        sys.modules[module.__name__] = import_module(_new_name(module.__name__))


def _new_name(name: str) -> str:
    return f"scannery.bridges{name.removeprefix(__name__)}"


sys.meta_path.append(_Renamed())
warnings.warn(
    "scannery.adapters is now scannery.bridges; the old name goes with the next release",
    DeprecationWarning,
    stacklevel=2,
)
