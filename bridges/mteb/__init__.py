"""mteb's retrieval tasks over Scannery: `ScannerySearch` is the whole service, `ScanneryIndex` the index alone."""

from scannery.bridges.mteb.index import ScanneryIndex
from scannery.client.packages import with_extra

try:
    from scannery.bridges.mteb.search import ScannerySearch
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "mteb":
        raise
    raise ImportError(f"scannery.bridges.mteb needs mteb: pip install '{with_extra('mteb')}'") from error

__all__ = ["ScanneryIndex", "ScannerySearch"]
