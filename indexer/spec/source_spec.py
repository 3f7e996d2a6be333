"""The source in the spec: the format of the input, and the fields of a record.

The limit of refused records: a number, or a share of all records.
"""

from __future__ import annotations

import codecs
import difflib
from collections.abc import Mapping
from encodings.aliases import aliases
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from scannery.indexer.spec.model import FieldSpecModel, Since, SpecModel, as_earlier, mapping_like

__all__ = [
    "GENERATED_ID",
    "ChunkSpec",
    "CsvSpec",
    "GeneratedId",
    "SourceFormat",
    "SourceSpec",
    "error_limit",
    "exceeds_limit",
]


def error_limit(value: str | float) -> float:
    """Return a limit of refused records as a number: from 1 (or 0) a count, below 1 a share of all records.

    Raises:
        ValueError: it is neither a count nor a share such as `1%` or 0.01.

    """
    text = str(value).strip()
    try:
        limit = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        limit = -1.0
    is_share = text.endswith("%")
    if not 0 <= limit < float("inf") or (limit > 1 and (is_share or not limit.is_integer())):
        raise ValueError(f"must be a number or a share such as 1%, got {value!r}")
    return float("inf") if is_share and limit == 1 else limit  # the number 1 is a count


def exceeds_limit(refused: int, records: int, limit: float) -> bool:
    """Return whether more of all `records` were refused than a limit, as `error_limit` returns it, allows."""
    return refused > (limit if limit >= 1 or limit == 0 else limit * records)


def check_limit(value: object) -> object:
    """Return a value of `source.max_errors` unchanged, after checking it; ValueError as `error_limit`."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float, type(None))):
        raise ValueError(f"must be a number or a share such as 1%, got {value!r}")
    if value is not None:
        error_limit(value)
    return value


SourceFormat = Literal["auto", "csv", "datapoints", "feed", "managed"]

_HOST = r"^[A-Za-z0-9._-]{1,253}(:[0-9]{1,5})?$"
_FIELD_KEYS = ("id", "text", "title", "vector", "document_id", "payload")
_OWN_FIELDS: dict[str, dict[str, str]] = {
    "datapoints": {"id": "id", "document_id": "document_id", "vector": "embedding", "text": "text",
                   "title": "title", "payload": "payload"},
    "managed": {"id": "id", "vector": "embedding", "payload": "embedding_metadata"},
}  # fmt: skip
"""Formats with fixed field names, which a spec need not repeat."""


class ChunkSpec(SpecModel):
    """How the text of a document is cut into passages."""

    max_tokens: Annotated[int, Field(ge=8, le=8192)] = 128
    """Most tokens in a passage, counted by the encoder's tokenizer without special tokens."""

    overlap_tokens: Annotated[int, Field(ge=0, le=4096)] = 16
    """Most tokens that a passage repeats from the end of the previous one; less than half of `max_tokens`."""

    headings: bool | None = None
    """Whether to read texts as Markdown: no passage crosses a heading, and tables are kept whole. Default: an index
    keeps its own choice; a new index cuts at headings if its input has Markdown, HTML, DOCX, EPUB or notebook files."""

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Absent means false where a spec is stored: the keys of earlier releases, and their hashes, stay the same.
        fields: dict[str, Any] = handler(self)
        return fields if self.headings else {k: v for k, v in fields.items() if k != "headings"}

    @model_validator(mode="after")
    def _overlap_leaves_room(self) -> ChunkSpec:
        if self.overlap_tokens * 2 >= self.max_tokens:
            raise ValueError(
                f"overlap_tokens must be less than half of max_tokens ({self.max_tokens}), "
                f"got {self.overlap_tokens}"
            )
        return self


def _encoding(value: str) -> str:
    try:
        "".encode(value)
        return codecs.lookup(value).name
    except (LookupError, UnicodeError, ValueError) as error:
        names = {name.replace("_", "-") for pair in aliases.items() for name in pair}
        near = difflib.get_close_matches(
            value.lower().replace("_", "-").replace(" ", "-"), sorted(names), 1, 0.5
        )
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"must be an encoding such as utf-8, utf-16 or windows-1252, got {value!r}{hint}"
        ) from error


Encoding = Annotated[str, AfterValidator(_encoding)]
"""The name of an encoding of texts, as Python has it."""

_DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|", "\\t": "\t"}


def _delimiter(value: object) -> object:
    return _DELIMITERS.get(value, value) if isinstance(value, str) else value


class CsvSpec(SpecModel):
    """How files of CSV and TSV are written. What is not given is found in each file."""

    delimiter: Annotated[str | None, BeforeValidator(_delimiter)] = None
    """What separates the cells: one character such as `;`, or `tab`."""

    quote: str | None = None
    """The character around cells that have delimiters or line breaks in them, or `none`. Default: `"`."""

    escape: Annotated[str | None, Since(1)] = None
    r"""The character that takes the meaning from the one behind it, such as the `\` of MySQL and PostgreSQL, or `none`:
    then `\"` is a quote, `\n` a line break, and a cell with `\N` has no value. Default: `\` in files that can only be
    read so."""

    encoding: Encoding | None = None
    """How characters are written, if not as `source.encoding` says: `utf-8`, `utf-16`, `windows-1252`, `latin-1`, or
    another encoding of Python's."""

    header: bool | Annotated[int, Field(ge=1, le=1000)] | list[str] | None = None
    """Where the names of the columns are: the number of their row, from 1; `true` for the first one; a list of the
    names if the file has none; `false` for columns that are called `1`, `2` and so on."""

    missing: list[str] | None = None
    """Cells that stand for no value, besides empty ones, such as `NULL` and `n/a`."""

    @field_validator("delimiter", "quote", "escape")
    @classmethod
    def _one_character(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None or value == "none" or (len(value) == 1 and value not in "\r\n\0"):
            return value
        alternative = "`tab`" if info.field_name == "delimiter" else "`none`"
        raise ValueError(f"must be one character or {alternative}, got {value!r}")

    @field_validator("header")
    @classmethod
    def _names(cls, value: bool | int | list[str] | None) -> bool | int | list[str] | None:
        if isinstance(value, list) and (not value or len(set(value)) < len(value)):
            raise ValueError(f"must be a list of different names, got {value!r}")
        return value

    @model_validator(mode="after")
    def _characters_differ(self) -> CsvSpec:
        if self.delimiter == "none":
            raise ValueError("`delimiter` must be one character, got 'none'")
        if self.delimiter is not None and self.delimiter == (self.quote or '"'):
            raise ValueError(f"`delimiter` and `quote` must differ, got {self.delimiter!r} for both")
        marks = {"delimiter": self.delimiter, "quote": self.quote or '"'}
        for name, mark in marks.items():
            if self.escape is not None and self.escape != "none" and self.escape == mark:
                raise ValueError(f"`escape` and `{name}` must differ, got {mark!r} for both")
        return self


def _text(value: object) -> object:
    # Before pydantic tries the union: its own errors list both branches.
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, str) and item for item in value):
        return list(value)
    if value is None or (isinstance(value, str) and value):
        return value
    raise ValueError(
        f"must be a field, a list of fields, or a template such as '{{title}}: {{body}}', got {value!r}"
    )


GENERATED_ID = "_id"
"""Field of a record with an id that was made, not read."""


class GeneratedId(FieldSpecModel):
    """What ids are made from, where no field has them."""

    path: Annotated[Literal["row", "content"], Field(alias="from")]
    """`row`: the path of the file and the number of the line or row in it, `notes/a.csv:17`. If rows are inserted or
    sorted, ids move to other rows, and an update replaces the wrong ones. `content`: a hash of all fields. Equal rows
    are one; a changed row is a new one, and the old one stays until a build with `--full`."""


class SourceSpec(SpecModel):
    """The format of the input, and the fields of a record."""

    format: SourceFormat = "auto"
    """`auto`: by the ending of each file. `csv`: files of any ending are tables, such as the `.txt` of a spreadsheet.
    `managed`: the input layout of the managed ScaNN service; `datapoints`: what `scannery index export` writes. These
    two have fixed field names, so no other key of `source` is needed. `feed`: RSS or Atom, whatever the ending; `text`
    and `title` need not be set."""

    fetch: Annotated[list[Annotated[str, Field(pattern=_HOST)]], Field(max_length=256), Since(1)] = []  # noqa: RUF012
    """Hosts that transcripts of a feed may be fetched from over http(s), such as `example.com` or `example.com:8080`;
    default: none."""

    id: str = "id"
    """Field with the document's id, unique in the corpus. Records of folders of text have `path`. Like all fields, it
    can be a name, a path to a nested field (`meta.id`), or a template of several (`{show}-{number}`); a name wins.
    Without such a field, `{from: row}` or `{from: content}`."""

    generated_id: Annotated[GeneratedId | None, Since(1)] = None
    """What ids are made from. Not a key of its own: written as `id`."""

    text: Annotated[str | list[str] | None, BeforeValidator(_text)] = None
    """Field with the text to embed and to return; a list of fields, whose texts are joined by a blank line; or a
    template (`{title}: {meta.body}`)."""

    title: str | None = None
    """Field with a title; it is embedded in front of each passage and returned with it."""

    text_format: Annotated[Literal["plain", "html"] | None, Since(1)] = None
    """How texts and titles of records are written. `html`: tags and entities are read, and texts become Markdown;
    texts without any stay as they are. `plain`: as they are. Default: `plain`; `scannery spec init` and `spec check`
    tell if texts have HTML. Files of HTML and feeds need no key."""

    vector: str | None = None
    """Field with a vector (list of numbers); then texts are not embedded. `dim_*` are the columns `dim_0`, `dim_1` and
    so on, one number each."""

    vector_bytes: Literal["float16", "float32", "float64"] | None = None
    """Type of the numbers if the vector field holds raw little-endian bytes (binary columns of Parquet)."""

    sparse_vector: str | None = None
    """Field with a sparse vector, such as one of SPLADE: a mapping of dimensions to weights. Lexical and hybrid
    searches can take one as the query."""

    document_id: str | None = None
    """Field that groups records into documents, if records are passages. Default: the id."""

    payload: str | None = None
    """Field with JSON that is returned and not searched."""

    chunk: Annotated[ChunkSpec | None, mapping_like(lambda _: "{max_tokens: 128, overlap_tokens: 16}")] = None
    """How to cut the text into passages; None: a record is one datapoint."""

    records: Annotated[Annotated[str, Field(min_length=1)] | None, Since(1)] = None
    """Field with the list of records in `.json` files that hold one object, or a path to it (`data.items`)."""

    max_errors: Annotated[str | int | float | None, BeforeValidator(check_limit), Since(1)] = None
    """Most records that may be refused: a number, or a share such as `1%`. A build that refuses more makes no version;
    one that keeps the limit is a full success. Default: a version is made of the good records, and `scannery build`
    ends with code 7 if any was refused."""

    encoding: Annotated[Encoding | None, Since(1)] = None
    """How the characters of text, Markdown, HTML, JSON, CSV and TSV are written: `windows-1252`, `shift_jis`, or
    another encoding of Python's. A byte order mark of UTF-16 or UTF-32 wins. Default: found in each file, by its
    letters if it is not UTF-8."""

    csv: Annotated[
        CsvSpec | None, mapping_like(lambda _: "{delimiter: ';', encoding: latin-1}"), Since(1)
    ] = None
    """How CSV and TSV are written, where it is not to be found from the file."""

    @property
    def has_ids_of_content(self) -> bool:
        """Whether ids are made from the content of records: those with one id are equal."""
        return self.generated_id is not None and self.generated_id.path == "content"

    @property
    def max_dead_letters(self) -> float | None:
        """`max_errors` as a number: from 1 (or 0) a count, below 1 a share of all records; None: no limit."""
        return None if self.max_errors is None else error_limit(self.max_errors)

    @model_validator(mode="before")
    @classmethod
    def _ids_apart(cls, data: object) -> object:
        """Part the field of ids, which all code reads, from what ids are made from."""
        if not isinstance(data, Mapping):
            return data
        if "generated_id" in data and data.get("id") != GENERATED_ID:
            raise ValueError("unknown key `generated_id`; write `id: {from: …}`")
        if not isinstance(data.get("id"), (Mapping, GeneratedId)):
            return data
        if data.get("format") in _OWN_FIELDS:
            raise ValueError(f"`id` cannot be set with `format: {data['format']}`, got {data['id']!r}")
        return {**data, "id": GENERATED_ID, "generated_id": data["id"]}

    @model_validator(mode="before")
    @classmethod
    def _own_fields(cls, data: object) -> object:
        format = data.get("format") if isinstance(data, Mapping) else None
        if format == "feed" and isinstance(data, Mapping):
            return {"text": "text", "title": "title", **data}
        fields = _OWN_FIELDS.get(format) if isinstance(format, str) else None
        if fields is None or not isinstance(data, Mapping):
            return data
        for key in (*_FIELD_KEYS, "records", "csv"):
            if data.get(key) not in (None, fields.get(key)):
                raise ValueError(f"`{key}` cannot be set with `format: {format}`, got {data[key]!r}")
        if format == "managed" and data.get("sparse_vector") not in (None, "sparse_embedding"):
            raise ValueError(f"`sparse_vector` can only be sparse_embedding, got {data['sparse_vector']!r}")
        return {**data, **fields}

    @model_validator(mode="after")
    def _keys_fit(self) -> SourceSpec:
        # The rows of an export are passages already, but live updates of the index are documents to cut.
        is_export = self.format == "datapoints"
        if self.chunk is not None and not is_export and self.vector is not None:
            raise ValueError("`chunk` needs `text` and no `vector`: a ready vector has no passages")
        if self.chunk is not None and self.sparse_vector is not None:
            raise ValueError("`chunk` and `sparse_vector` exclude each other: a ready vector has no passages")
        if self.vector_bytes is not None and self.vector is None:
            raise ValueError("`vector_bytes` needs `vector`")
        return self

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = as_earlier(self, handler(self))
        if (generated := fields.pop("generated_id", None)) is not None:
            fields["id"] = generated
        return fields
