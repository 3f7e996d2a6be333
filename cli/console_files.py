"""Files as the console reads and writes them: like `scannery upsert`, `scannery spec` and `scannery scan`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from scannery.cli.output import json_text, point_json
from scannery.cli.uploads import PointReader
from scannery.console.files.formats import FileFormats

__all__ = ["file_formats"]


def file_formats() -> FileFormats:
    """Return what the console is handed."""
    return FileFormats(
        points=_Points, check=_check, draft=_draft, line=lambda point: json_text(point_json(point))
    )


class _Points:
    """The datapoints of the files in a folder, by the spec of an index."""

    def __init__(self, folder: Path, spec: Mapping[str, Any]) -> None:
        self._folder = folder
        self._reader = PointReader(spec)

    @property
    def ignored(self) -> list[str]:
        return self._reader.ignored

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for record, point in self._reader.read([str(self._folder)]):
            yield record.location.removeprefix(f"{self._folder.as_posix()}/"), point


def _check(folder: Path, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    from scannery.indexer import parse_spec
    from scannery.pipelines.profiling.checking import check_sample
    from scannery.pipelines.profiling.sample import read_sample

    parsed = parse_spec(spec)
    report = check_sample(parsed, read_sample([str(folder)], parsed.source), None)
    return {"report": _without(folder, report.to_dict())}


def _draft(folder: Path) -> Mapping[str, Any]:
    from scannery.pipelines.profiling.drafting import draft_spec
    from scannery.pipelines.profiling.sample import init_sample

    inputs = [str(folder)]
    sample, source = init_sample(inputs)
    draft = draft_spec(sample, inputs, overrides={}, source=source)
    return {"spec": yaml.safe_load(draft.text), "report": _without(folder, draft.report.to_dict())}


def _without(folder: Path, value: Any) -> Any:
    """Return JSON values whose texts do not tell the folder."""
    if isinstance(value, str):
        return value.replace(f"{folder.as_posix()}/", "")
    if isinstance(value, dict):
        return {name: _without(folder, each) for name, each in value.items()}
    return [_without(folder, each) for each in value] if isinstance(value, (list, tuple)) else value
