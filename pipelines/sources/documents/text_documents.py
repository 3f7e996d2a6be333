"""Markdown files and notebooks: their text as it is, and fields from front matter and headings."""

from __future__ import annotations

import json
import math
import re
import sys
from datetime import date, datetime, time
from functools import cache
from typing import Any

from scannery.embed.text.markdown import find_structure, front_matter_end
from scannery.indexer.strict_json import exact_json, exact_number
from scannery.pipelines.sources.documents.document import Block, Document, DocumentError, joined

__all__ = ["front_matter", "has_bad_front_matter", "markdown_title", "read_notebook"]

MOST_FIELDS = 256
MOST_DEPTH = 32
"""Nesting of front matter."""
_MOST_BITS = 1024
"""Bits of a whole number: larger ones cannot be written in decimal."""
_LONG_KEY = re.compile(
    rf"(?:(?:\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|(?<![\w-])[\w-]+)[ \t]*\.[ \t]*){{{MOST_DEPTH}}}"
)
"""A key of TOML that nests deep: reading it takes time quadratic in its parts."""


def front_matter(text: str) -> dict[str, Any]:
    """Return the fields of the front matter of a Markdown text; none if it cannot be read."""
    return _front_matter(text) or {}


def has_bad_front_matter(text: str) -> bool:
    """Return whether a Markdown text has front matter that cannot be read, such as `title: Notes: on ice`."""
    return _front_matter(text) is None


def _front_matter(text: str) -> dict[str, Any] | None:
    """Return the fields of front matter, None if they cannot be read."""
    content = text[: front_matter_end(text)].strip("\ufeff").strip()
    if not content:
        return {}
    try:
        if content.startswith("+++"):
            fields = _toml(content.strip("+"))
        else:
            fields = exact_json(content) if content.startswith("{") else _yaml(content.strip("-."))
        if fields is None:
            return {}
        if not isinstance(fields, dict):
            return None
        return {str(key): _plain(value) for key, value in [*fields.items()][:MOST_FIELDS]}
    except (ValueError, RecursionError):
        return None


def _toml(content: str) -> object:
    if sys.version_info < (3, 11):
        raise ValueError("TOML is read from Python 3.11 on")
    import tomllib

    if _LONG_KEY.search(content) is not None:
        raise ValueError("TOML with a key that nests deep")
    return tomllib.loads(content, parse_float=exact_number)


def _yaml(content: str) -> object:
    """Return the value in YAML; raises ValueError for what is no simple YAML."""
    import yaml

    try:
        if _is_simple(content):
            return yaml.load(content, Loader=_loader())
    # The others are raised for a value that its tag does not fit, such as `!!bool 7`.
    except (yaml.YAMLError, LookupError, AttributeError, TypeError, OverflowError) as error:
        raise ValueError("not YAML") from error
    raise ValueError("YAML with aliases, or that nests deep")


def _is_simple(content: str) -> bool:
    """Return whether YAML has no aliases and does not nest deep: it could grow exponentially, or take long."""
    import yaml

    opening = (yaml.FlowSequenceStartToken, yaml.FlowMappingStartToken, yaml.BlockSequenceStartToken,
               yaml.BlockMappingStartToken)  # fmt: skip
    closing = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken, yaml.BlockEndToken)
    depth = 0
    for token in yaml.scan(content, Loader=_loader()):
        depth += isinstance(token, opening) - isinstance(token, closing)
        if depth > MOST_DEPTH or isinstance(token, yaml.AliasToken):
            return False
    return True


def _plain(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON has it: YAML and TOML have dates; raises ValueError for what no index can keep."""
    if depth > MOST_DEPTH:
        raise ValueError("front matter that nests deep")
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise ValueError("front matter with a number that is too large")
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, set):
        value = sorted(value, key=str)  # their order is that of hashes, which differ in each process
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1) for item in value]
    return value


@cache
def _loader() -> Any:
    """Return the loader of YAML, with floats as JSON and TOML are read: `1.0e+999` is not infinite, `.inf` is."""
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # with or without libyaml
        """Makes decimals of numbers that no float can hold."""

    def exact_float(loader: Any, node: Any) -> Any:
        value = loader.construct_yaml_float(node)
        if math.isinf(value) and node.value.strip("+-").lower() != ".inf":
            return exact_number(node.value.replace("_", ""))
        return value

    Loader.add_constructor("tag:yaml.org,2002:float", exact_float)
    return Loader


def markdown_title(text: str) -> str | None:
    """Return the first of the highest headings of a Markdown text that begins within it; None if it has none."""
    trails = [section.trail for section in find_structure(text[:MOST_TITLE_CHARS]).sections if section.trail]
    return trails[0].split(" > ")[0] if trails else None


MOST_TITLE_CHARS = 1 << 16
"""A title is looked for in the beginning of a text."""


def read_notebook(data: bytes) -> Document:
    """Return the texts and the code of a Jupyter notebook, without outputs.

    Raises:
        DocumentError: it is no notebook.

    """
    try:
        notebook = json.loads(data)
        cells = notebook["cells"]
        language = notebook.get("metadata", {}).get("language_info", {}).get("name", "")
        blocks = [block for cell in cells if (block := _cell(cell, str(language)))]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise DocumentError("malformed", f"not a notebook: {error!r:.200}") from error
    text = joined(blocks)
    return Document(text=text, title=markdown_title(text))


def _cell(cell: dict[str, Any], language: str) -> Block | None:
    source = cell["source"]
    text = (source if isinstance(source, str) else "".join(source)).strip()
    if not text or cell["cell_type"] not in ("markdown", "code"):
        return None
    return Block(f"```{language}\n{text}\n```" if cell["cell_type"] == "code" else text)
