"""Write the results of an evaluation: TREC runs, and the values of each query as JSON lines or CSV."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from scannery.pipelines.errors import CollectionError
from scannery.pipelines.evaluation.evaluate import Evaluation

__all__ = ["run_paths", "write_per_query", "write_run"]


def run_paths(path: Path, names: Sequence[str]) -> dict[str, Path]:
    """Return the file of each configuration's run: the path itself for one, `run.dense.trec`, … for several."""
    if len(names) == 1:
        return {names[0]: path}
    parts = {name: re.sub(r"[^\w.=-]+", "_", name) for name in names}
    return {name: path.with_name(f"{path.stem}.{part}{path.suffix}") for name, part in parts.items()}


def write_run(path: Path, result: Evaluation) -> int:
    """Write a TREC run, and return the number of ids that had blanks, which a run cannot hold.

    A line has the query, `Q0`, the document, the rank from 1, a score, and the name of the configuration. Programs for
    runs order by score and equal scores by their own rule, so scores are numbers that fall with the rank. Blanks in
    ids become `%20`.
    """
    tag = re.sub(r"\s+", "_", result.name)
    changed: set[str] = set()

    def word(identifier: str) -> str:
        if re.search(r"\s", identifier):
            changed.add(identifier)
        return re.sub(r"\s", lambda match: f"%{ord(match[0]):02X}", identifier)

    lines = [
        f"{word(query)} Q0 {word(document)} {rank} {len(documents) - rank + 1} {tag}\n"
        for query, documents in zip(result.query_ids, result.found, strict=True)
        for rank, document in enumerate(documents, 1)
    ]
    _write(path, "".join(lines))
    return len(changed)


def write_per_query(path: Path, results: Sequence[Evaluation], texts: Mapping[str, str]) -> None:
    """Write a row for each configuration and query: its id, text, number of hits, and value of each measure.

    Raises:
        CollectionError: the file's ending is neither `.jsonl` nor `.csv`.

    """
    if path.suffix not in (".jsonl", ".csv"):
        raise CollectionError(f"per-query: {path} must end with .jsonl or .csv", field="per-query")
    rows = [
        {
            "configuration": result.name,
            "query_id": name,
            "text": texts[name],
            "hits": len(result.found[position]),
            **{measure: float(values_Q[position]) for measure, values_Q in result.values.items()},
        }
        for result in results
        for position, name in enumerate(result.query_ids)
    ]
    if path.suffix == ".jsonl":
        _write(path, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
        return
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    _write(path, text.getvalue())


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
