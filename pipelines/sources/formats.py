"""The format of a file, by its name, or by its first bytes where the name does not tell."""

from __future__ import annotations

import bz2
import contextlib
import lzma
import zlib
from pathlib import PurePosixPath

import zstandard

from scannery.pipelines.sources.locations import InputFile, open_bytes

__all__ = ["HINTS", "MAX_XZ_BYTES", "SUFFIXES", "compression_of", "format_in", "format_of"]

SUFFIXES = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".csv": "csv", ".tsv": "tsv",
    ".parquet": "parquet", ".pq": "parquet", ".parq": "parquet",
    ".arrow": "arrow", ".arrows": "arrow", ".ipc": "arrow", ".feather": "arrow",
    ".avro": "avro",
    ".npy": "npy", ".npz": "npz", ".fvecs": "fvecs", ".bvecs": "bvecs", ".ivecs": "ivecs",
    ".fbin": "fbin", ".ibin": "ibin", ".u8bin": "u8bin", ".i8bin": "i8bin", ".vec": "vec",
    ".txt": "text", ".text": "text", ".vtt": "text", ".srt": "text", ".sbv": "text", ".lrc": "text",
    ".ttml": "ttml", ".dfxp": "ttml", ".json3": "transcript", ".md": "markdown", ".markdown": "markdown",
    ".html": "html", ".htm": "html", ".xhtml": "html", ".pdf": "pdf", ".docx": "docx", ".epub": "epub",
    ".ipynb": "notebook", ".rss": "feed", ".atom": "feed", ".xml": "feed",
}  # fmt: skip
"""File name endings and their formats; an ending of a compression may follow those of text, JSON lines and CSV."""

COMPRESSIONS = {".gz": "gz", ".gzip": "gz", ".zst": "zst", ".bz2": "bz2", ".xz": "xz"}
COMPRESSIBLE = frozenset({"jsonl", "csv", "tsv", "vec", "text", "markdown", "html", "notebook", "feed", "ttml",
                          "transcript"})  # fmt: skip

_UNPACK = "unpack it, and name the folder"
_PICKLE = "may run code when it is loaded; write its table as Parquet, or its vectors with `numpy.save`"
MAX_XZ_BYTES = 128 << 20
"""Memory of a decoder of xz: the highest of its levels takes half of that."""
HINTS = {
    ".h5": "HDF5: write its vectors with `numpy.save('vectors.npy', h5py.File(…)['…'][:])`, or its table as Parquet",
    ".xlsx": "a spreadsheet: save its sheet as CSV",
    ".orc": "ORC: write the table as Parquet, with `pyarrow.orc.read_table` and `pyarrow.parquet.write_table`",
    ".pkl": _PICKLE,
    ".zip": _UNPACK,
}
"""What to do about files of other formats, by ending."""
HINTS |= {".hdf5": HINTS[".h5"], ".he5": HINTS[".h5"], ".hdf": HINTS[".h5"]}
HINTS |= dict.fromkeys((".xls", ".ods"), HINTS[".xlsx"])
HINTS |= dict.fromkeys((".pickle", ".pt", ".pth", ".joblib"), _PICKLE) | dict.fromkeys(
    (".tar", ".tgz", ".7z"), _UNPACK
)

_MAGIC = {b"PAR1": "parquet", b"Obj\x01": "avro", b"ARROW1": "arrow", b"FEA1": "arrow", b"\x93NUMPY": "npy"}
_COMPRESSED_MAGIC = {b"\x1f\x8b": "gz", b"\x28\xb5\x2f\xfd": "zst", b"BZh": "bz2", b"\xfd7zXZ\0": "xz"}
_HEAD_BYTES = 4096


def compression_of(path: str) -> str:
    """Return the compression that a file's ending names; empty without one."""
    return COMPRESSIONS.get(PurePosixPath(path).suffix.lower(), "")


def format_of(path: str) -> tuple[str, str] | None:
    """Return format and compression of a file by its name; None if it does not tell.

    `x.parquet.gz` does not: with it pandas means the compression inside of the file, others that of the file.
    """
    suffixes = [suffix.lower() for suffix in PurePosixPath(path).suffixes]
    compression = COMPRESSIONS.get(suffixes[-1], "") if suffixes else ""
    if compression:
        suffixes.pop()
    format = SUFFIXES.get(suffixes[-1]) if suffixes else None
    if format is None or (compression and format not in COMPRESSIBLE):
        return None
    return format, compression


def format_in(file: InputFile) -> tuple[str, str] | None:
    """Return format and compression of a file by its first bytes, such as `part-00000` of Spark; None for others.

    Texts are known only if they are JSON: any file can be text. Without a byte, a file without an ending is JSON lines:
    Spark and Hadoop write such files of partitions without rows.
    """
    try:
        with open_bytes(file.base, file.path) as raw:
            head = bytes(raw.read(_HEAD_BYTES))
    except OSError:  # which reading the file will tell
        return None
    for magic, format in _MAGIC.items():
        if head.startswith(magic):
            return format, ""
    compression = next((name for magic, name in _COMPRESSED_MAGIC.items() if head.startswith(magic)), "")
    text = _decompressed(head, compression).removeprefix(b"\xef\xbb\xbf").lstrip()
    has_ending = PurePosixPath(file.path).suffix.lower() not in ("", *COMPRESSIONS)
    is_empty = not (text or has_ending) and (bool(compression) or not head)
    return ("jsonl", compression) if text[:1] in (b"{", b"[") or is_empty else None


def _decompressed(head: bytes, compression: str) -> bytes:
    """Return the beginning of a file, as far as its first bytes tell."""
    with contextlib.suppress(zlib.error, zstandard.ZstdError, lzma.LZMAError, OSError, ValueError, EOFError):
        if compression == "gz":
            return zlib.decompressobj(wbits=31).decompress(head, _HEAD_BYTES)
        if compression == "zst":
            return zstandard.ZstdDecompressor().decompressobj().decompress(head[:1024])
        if compression == "bz2":
            return bz2.BZ2Decompressor().decompress(head, _HEAD_BYTES)
        if compression == "xz":
            return lzma.LZMADecompressor(memlimit=MAX_XZ_BYTES).decompress(head, _HEAD_BYTES)
    return b"" if compression else head
