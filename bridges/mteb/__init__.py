"""mteb's retrieval tasks over Scannery: `ScannerySearch` is the whole service, `ScanneryIndex` the index alone."""

from scannery.bridges.mteb.index import ScanneryIndex

try:
    from scannery.bridges.mteb.search import ScannerySearch
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "mteb":
        raise
    raise ImportError("scannery.bridges.mteb needs mteb: pip install 'scannery[mteb]'") from error

__all__ = ["ScanneryIndex", "ScannerySearch"]
