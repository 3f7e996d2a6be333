"""Turn the Changelog podcast transcripts into documents that `scannery build` reads.

    python examples/podcasts/prepare.py --show news --output news.jsonl.gz

The archives (one per show, `show/episode.md`, turns as `**Speaker:** text`) are looked for in the folder given as
argument, else in $SCANNERY_DATA/podcasts-changelog, else in ../shared/data/podcasts-changelog.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import re
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

SHOWS = {
    "afk": "Away from Keyboard",
    "brainscience": "Brain Science",
    "founderstalk": "Founders Talk",
    "gotime": "Go Time",
    "news": "Changelog News",
    "practicalai": "Practical AI",
    "shipit": "Ship It!",
}

# Music between turns, written as if it spoke. The name goes, the time that often follows stays: passages get it.
INTERLUDE = re.compile(r"^\*\*(?:Break|Jingle|Intro|Outro|Song)(?::\*\*|\*\*:)[ \t]*", re.MULTILINE)
SPEAKER = re.compile(r"^\*\*([^*\n]{1,80}?)(?::\*\*|\*\*:)", re.MULTILINE)


def episodes(folder: Path, shows: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield one document per transcript, show by show, in the order of the episode numbers."""
    for show in shows:
        with tarfile.open(folder / f"{show}.tar.gz") as archive:
            members = [member for member in archive.getmembers() if member.name.endswith(".md")]
            for member in sorted(members, key=_order):
                content = archive.extractfile(member)
                if content is not None:
                    yield document(member.name, content.read().decode("utf-8", "replace"))


def document(path: str, text: str) -> dict[str, Any]:
    """Return the document of one transcript; `path` is `show/episode.md`."""
    show, name = PurePosixPath(path).parts[-2], PurePosixPath(path).stem
    number = _number(name)
    title = SHOWS.get(show, show) + (f" #{number}" if number is not None else f": {name.replace('-', ' ')}")
    text = INTERLUDE.sub("", text)
    people = {name.strip(): None for name in SPEAKER.findall(text)}  # in order of appearance
    return {
        "id": f"{show}/{name}",
        "show": show,
        "episode": number,
        "title": title,
        "people": list(people),
        "text": text,
    }


def _number(name: str) -> int | None:
    match = re.search(r"-(\d+)$", name)
    return int(match[1]) if match else None


def _order(member: tarfile.TarInfo) -> tuple[int, str]:
    number = _number(PurePosixPath(member.name).stem)
    return (sys.maxsize if number is None else number, member.name)


def _default_folder() -> Path:
    beside = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    return Path(os.environ.get("SCANNERY_DATA", beside)) / "podcasts-changelog"


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO | gzip.GzipFile]:
    """Open a file to write, gzip-compressed if its name ends so."""
    with path.open("wb") as raw:
        if path.suffix != ".gz":
            yield raw
            return
        # No time stamp in the archive: the same transcripts make the same bytes.
        with gzip.GzipFile("", "wb", 6, raw, mtime=0) as compressed:
            yield compressed


def main() -> int:
    """Write the documents and say how many there are."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, default=_default_folder(), help="folder of the archives"
    )
    parser.add_argument("--show", action="append", choices=sorted(SHOWS), help="only this one; repeatable")
    parser.add_argument("--output", type=Path, default=Path("podcasts.jsonl.gz"))
    arguments = parser.parse_args()
    if not arguments.folder.is_dir():
        parser.error(
            f"there is no folder {arguments.folder}; see docs/podcasts.md for where to get the transcripts"
        )
    count = 0
    with opened(arguments.output) as output:
        for episode in episodes(arguments.folder, arguments.show or sorted(SHOWS)):
            output.write(json.dumps(episode, ensure_ascii=False).encode() + b"\n")
            count += 1
    print(f"{count} episodes in {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
