"""Transcripts of episodes: the best of those that an episode names, as a text with times and speakers."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from urllib.parse import SplitResult, unquote, urlsplit

from scannery.pipelines.sources.documents.document import DocumentError
from scannery.pipelines.sources.documents.html_pages import read_html
from scannery.pipelines.sources.encodings import decoded_text
from scannery.pipelines.sources.feeds.feed_records import Transcript
from scannery.pipelines.sources.feeds.fetching import FetchError, fetch
from scannery.pipelines.sources.locations import leaves_folder, open_bytes
from scannery.pipelines.sources.transcripts import text_of_json, text_of_ttml

__all__ = ["MAX_TRANSCRIPT_BYTES", "TranscriptResult", "local_path", "transcript_of"]

MAX_TRANSCRIPT_BYTES = 16 * 2**20

_TYPES = {"text/vtt": "vtt", "application/x-subrip": "srt", "application/srt": "srt", "text/srt": "srt",
          "application/json": "json", "application/ttml+xml": "ttml",
          "text/html": "html", "text/plain": "txt"}  # fmt: skip
_ENDINGS = {
    ".vtt": "vtt",
    ".srt": "srt",
    ".json": "json",
    ".ttml": "ttml",
    ".sbv": "srt",
    ".html": "html",
    ".htm": "html",
    ".txt": "txt",
    ".md": "txt",
}
_CONVERTED = {"json": text_of_json, "ttml": text_of_ttml}
_BEST = ("vtt", "srt", "json", "ttml", "html", "txt")
"""Formats by how much they tell: times and speakers first."""


class TranscriptResult:
    """What became of the transcripts of an entry."""

    def __init__(self) -> None:
        self.text: str | None = None
        self.problem: str | None = None
        """Why there is no text, although the entry names a transcript."""


def transcript_of(
    transcripts: Sequence[Transcript], base: str, feed: str, allowed: Sequence[str]
) -> TranscriptResult:
    """Return the text of the best transcript that can be read.

    Args:
        transcripts: those that an entry names.
        base: the folder of the input.
        feed: path of the feed below it.
        allowed: hosts that transcripts may be fetched from.

    """
    result = TranscriptResult()
    for transcript in sorted(transcripts, key=lambda transcript: _BEST.index(_kind(transcript))):
        try:
            result.text = _readable(_content(transcript, base, feed, allowed), _kind(transcript))
        except OSError:
            result.problem = result.problem or "transcript: the file cannot be opened"
        except (FetchError, DocumentError) as error:
            result.problem = result.problem or f"transcript: {error}"
        if result.text:
            result.problem = None
            break
    return result


def local_path(url: str, feed: str) -> str | None:
    """Return the path below the input's folder that a transcript has; None if it is elsewhere.

    Also None for hidden files, and for files with another ending than those of transcripts.
    """
    parts = _parts(url)
    if parts is None or parts.scheme or parts.netloc or not _ending(parts):
        return None
    named = unquote(parts.path)
    if named.startswith("/") or "\\" in named or "\0" in named:
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(feed), named))
    target = posixpath.relpath(path, posixpath.dirname(feed) or ".")
    # Hidden names are no input, and have keys and passwords of tools: a feed may come from anybody.
    is_hidden = any(part.startswith(".") and part != ".." for part in target.split("/"))
    return None if is_hidden or path.startswith(("../", "/")) or path in (".", "..") else path


def _kind(transcript: Transcript) -> str:
    kind = _TYPES.get(transcript.type.partition(";")[0].strip())
    parts = _parts(transcript.url)
    return kind or ("txt" if parts is None else _ENDINGS.get(_ending(parts), "txt"))


def _parts(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:  # brackets without an address of IPv6 in them
        return None


def _ending(parts: SplitResult) -> str:
    """Return the ending of a URL's path if it is one of transcripts; else an empty text."""
    ending = posixpath.splitext(parts.path)[1].lower()
    return ending if ending in _ENDINGS else ""


def _content(transcript: Transcript, base: str, feed: str, allowed: Sequence[str]) -> bytes:
    if transcript.url.lower().startswith(("http://", "https://")):
        return fetch(transcript.url, allowed, MAX_TRANSCRIPT_BYTES)
    path = local_path(transcript.url, feed)
    if path is None:
        raise FetchError("not a file with the ending of a transcript below the folder of the input")
    if leaves_folder(base, path):
        raise FetchError("a link to outside of the folder of the input")
    with open_bytes(base, path) as file:
        data = file.read(MAX_TRANSCRIPT_BYTES + 1)
    if len(data) > MAX_TRANSCRIPT_BYTES:
        raise FetchError(f"larger than {MAX_TRANSCRIPT_BYTES >> 20} MiB")
    return bytes(data)


def _readable(data: bytes, kind: str) -> str:
    if kind == "html":
        return read_html(data).text
    if kind in _CONVERTED:
        return _CONVERTED[kind](data)
    try:
        return decoded_text(data)[0]
    except UnicodeDecodeError as error:
        raise DocumentError("encoding", f"no text: {error.reason} at byte {error.start}") from error
