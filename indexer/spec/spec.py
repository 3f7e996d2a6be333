"""The spec of an index, as users write it in SPEC.yaml.

Sharding: the shard of a document, by a hash of its id.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import numpy as np
import pyarrow as pa
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)

from scannery.indexer.ranking.parsing import MAX_CHARACTERS, RankingSyntaxError, program_of
from scannery.indexer.spec.attribute_spec import (
    AttributeSpec,
    AttributeType,
    CheckedType,
    check_attribute_name,
)
from scannery.indexer.spec.model import (
    INDEX_NAME,
    FieldSpecModel,
    Since,
    SpecModel,
    as_earlier,
    mapping_like,
)
from scannery.indexer.spec.source_spec import ChunkSpec, CsvSpec, SourceFormat, SourceSpec
from scannery.indexer.spec.vector_spec import (
    Distance,
    EncoderSpec,
    NamedVectorSpec,
    NamedVectorSpecs,
    check_named_vectors,
    text_field,
)
from scannery.runtime.boosts import expression_of
from scannery.runtime.search_modes import FusionMethod, Mode
from scannery.runtime.times import length_s

__all__ = [
    "AttributeSpec",
    "AttributeType",
    "ChunkSpec",
    "CsvSpec",
    "Distance",
    "EncoderSpec",
    "ExpirySpec",
    "IndexSpec",
    "Language",
    "LexicalSpec",
    "LiveSpec",
    "NamedVectorSpec",
    "ScannSpec",
    "SourceFormat",
    "SourceSpec",
    "shard_of",
    "shards_of_ids",
]


def _check_shards(value: object) -> object:
    # Before pydantic tries the union: its own errors list both branches.
    if value == "auto" or (
        isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_SHARDS
    ):
        return value
    raise ValueError(f"must be auto or an integer from 1 to {MAX_SHARDS}, got {value!r}")


MAX_SHARDS = 4096
Shards = Annotated[
    Literal["auto"] | Annotated[int, Field(ge=1, le=MAX_SHARDS)], BeforeValidator(_check_shards)
]


class RerankerSpec(SpecModel):
    """The cross-encoder that can rerank the first hits of a search. Builds measure what its scores mean."""

    model: Annotated[str, Field(min_length=1, max_length=1024)]
    """A sentence-transformers `CrossEncoder` with one output: a name, or a local folder. Never runs remote code."""

    max_tokens: Annotated[int, Field(ge=8, le=131072)] | None = None
    """Longest pair of query and text in tokens, the rest is cut off; default: the model's own limit."""


def synonym_sides(rule: str) -> tuple[list[str], list[str]]:
    """Return the texts of a rule, and those that they also find: the same without an arrow."""
    left, arrow, right = rule.partition("=>")
    texts, synonyms = (
        [text.strip() for text in side.split(",")] for side in (left, right if arrow else left)
    )
    return texts, synonyms


def _synonym_rule(rule: str) -> str:
    texts, synonyms = synonym_sides(rule)
    arrows = rule.count("=>")
    if arrows > 1 or not all((*texts, *synonyms)) or (not arrows and len(texts) < 2):
        raise ValueError(f"must be like `tv, television` or `nyc, big apple => new york`, got {rule!r:.80}")
    return rule


SynonymRule = Annotated[str, Field(max_length=1_000), AfterValidator(_synonym_rule)]


def _is_ranking(text: str, attributes: Mapping[str, str]) -> bool:
    try:
        program_of(text, attributes)
    except RankingSyntaxError:
        return False
    return True


def _ranking_text(value: object) -> object:
    return value if isinstance(value, str) else expression_of(value)


RankingName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,62}$")]
RankingText = Annotated[str, BeforeValidator(_ranking_text), Field(max_length=MAX_CHARACTERS)]


class SearchSpec(SpecModel):
    """Defaults of searches, for requests that do not set them. They do not affect what an index stores."""

    mode: Mode | None = None
    """Mode of searches by text; default: `hybrid` if words are indexed, `lexical` if the index has no encoder, else
    `dense`. Searches by vector are dense."""

    fusion: FusionMethod = "weighted_score"
    """How hybrid search combines its two rankings: by scaled scores, or by ranks."""

    alpha: Annotated[float, Field(ge=0, le=1)] | None = None
    """Hybrid search: weight of the dense ranking, the lexical ranking has the rest; default: measured by the build."""

    typos: Annotated[bool, Since(2)] = True
    """Whether a word that no text has stands for words that differ from it by one letter, from eight letters on by
    two."""

    synonyms: Annotated[list[SynonymRule], Field(max_length=10_000), Since(2)] = []  # noqa: RUF012
    """Rules by which words also find other words: `tv, television` in both directions, `nyc, big apple => new york`
    from left to right."""

    ranking: Annotated[dict[RankingName, RankingText], Field(max_length=64), Since(3)] = {}  # noqa: RUF012
    """Ranking expressions by name, for searches that ask for one: a text like `score + 0.2 * decay(published, '90d')`,
    or a list of boosts."""

    link: Annotated[str | None, Field(pattern=r"^(https://|\{)", max_length=2_000), Since(3)] = None
    """Address of a datapoint for pages that show hits, with `{id}`, `{document_id}`, `{seconds}` (where a passage of a
    recording begins) and attributes by name in it; only `https:` ones are shown."""

    def readable(self, attributes: Mapping[str, str]) -> SearchSpec:
        """Return the defaults without rankings and a link that name other attributes than these."""
        ranking = {name: text for name, text in self.ranking.items() if _is_ranking(text, attributes)}
        named = set(re.findall(r"\{(.*?)\}", self.link or "")) - {"id", "document_id", "seconds"}
        link = self.link if named <= attributes.keys() else None
        return self.model_copy(update={"ranking": ranking, "link": link})


class ScannSpec(SpecModel):
    """Parameters of ScaNN. The defaults depend on the rows, dimensions and distance of a segment."""

    exact_below_rows: Annotated[int, Field(ge=1000, le=10_000_000)] = 20_000
    """Segments with fewer rows are scanned, which is as fast and needs no training."""

    leaves: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Leaves of the partitioning tree of a segment; default: by trial, once or twice the square root of its rows."""

    training_rows: Annotated[int, Field(ge=1000)] | None = None
    """Rows that the tree is trained on; default: 100 per leaf, at least 100,000."""

    dimensions_per_block: Annotated[int, Field(ge=1, le=16)] | None = None
    """Dimensions that share a code of four bits; default: by trial, 2 or 4 (1 or 2 for vectors below 16 dimensions)."""

    anisotropic_threshold: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Threshold of anisotropic quantization: how much errors parallel to a vector count; not used with `squared_l2`."""

    soar: bool | None = None
    """Whether each row is also in a second leaf; default: by trial. Never with `squared_l2`."""

    rescore: Annotated[int, Field(ge=20, le=10_000)] | None = None
    """Candidates that are rescored with exact vectors, for ten hits; default: chosen by tuning, 20 to 640."""


MAX_AFTER_S = 10_000 * 366 * 86_400
"""Times have the years 1 to 9999; sums of microseconds fit in 64 bits."""


def _length_of_time(text: str) -> str:
    seconds = length_s(text)
    if seconds is None:
        raise ValueError(f"must be a length of time like `30d` or `12h` (s, m, h, d, w, y), got {text!r:.80}")
    if seconds > MAX_AFTER_S:
        raise ValueError(f"must be at most {MAX_AFTER_S / 86400:.0f}d, got {text!r:.80}")
    return text


class ExpirySpec(FieldSpecModel):
    """When a datapoint expires. From then on no request sees it, and maintenance removes it from the next version."""

    path: Annotated[str, Field(alias="from")]
    """Attribute with the time from which a datapoint lives, or, without `after`, at which it expires: a `timestamp`.
    A datapoint without a value never expires."""

    after: Annotated[str, AfterValidator(_length_of_time)] | None = None
    """How long a datapoint lives from that time on, such as `30d` (s, m, h, d, w, y). Default: not at all."""

    def limit_us(self, second: int) -> int:
        """Return the latest time of a datapoint that has expired at a second since 1970, in microseconds."""
        return second * 1_000_000 - self._after_us

    def second_of(self, time_us: int) -> int:
        """Return the first second since 1970 at which a datapoint with a time in microseconds has expired."""
        return -(-(time_us + self._after_us) // 1_000_000)

    @property
    def _after_us(self) -> int:
        return round(1e6 * (length_s(self.after) or 0.0)) if self.after else 0


def _expiry(value: object) -> object:
    if value is None or isinstance(value, (Mapping, ExpirySpec)):
        return value
    if isinstance(value, str):
        return {"from": value}
    raise ValueError(
        f"must be an attribute, or a mapping such as `{{from: published, after: 30d}}`, got {value!r}"
    )


def _or_attribute(schema: dict[str, Any]) -> None:
    schema["anyOf"] = [{"type": "string"}, *schema["anyOf"]]


class LiveSpec(SpecModel):
    """Thresholds of live updates: for sealing new rows in memory, merging segments, and garbage collection."""

    seal_rows: Annotated[int, Field(ge=100, le=10_000_000)] = 20_000
    """New rows in memory at which they are sealed, up to three times as many while they come quickly: above this, ScaNN
    is faster than a scan."""

    seal_bytes: Annotated[int, Field(ge=1 << 20)] = 256 << 20
    """Bytes of new rows in memory at which they are sealed; each worker holds them, and a restart reads them again."""

    seal_age_s: Annotated[float, Field(gt=0)] = 600.0
    """Seconds after which new rows are sealed in any number, so that the log stays short."""

    max_rows: Annotated[int, Field(ge=1000)] = 200_000
    """New rows in memory at which writes are refused until some are sealed; each search scans all of them."""

    max_bytes: Annotated[int, Field(ge=1 << 20)] = 1 << 30
    """Bytes of new rows in memory at which writes are refused until some are sealed."""

    merge_segments: Annotated[int, Field(ge=2, le=64)] = 4
    """Number of segments of a shard, of sizes within this factor, at which they are merged."""

    merge_deleted_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of deleted rows in a segment at which it is rewritten without them."""

    gc_every_s: Annotated[float, Field(ge=0)] = 3600.0
    """Seconds between two garbage collections by a server that takes writes; 0: none."""

    gc_keep: Annotated[int, Field(ge=1)] = 3
    """Number of newest versions that garbage collection keeps at any age."""

    gc_min_age_s: Annotated[float, Field(ge=0)] = 72 * 3600.0
    """Least age in seconds of versions and files that are removed: how far back a rollback can go."""

    foreign_vectors: Annotated[Literal["flag", "refuse", "allow"], Since(3)] = "flag"
    """What becomes of a written batch whose vectors do not look like those of the index, and whose model the caller has
    not named: `flag` writes it, with a warning, `refuse` refuses it, `allow` does not compare."""

    expire: Annotated[
        ExpirySpec | None, BeforeValidator(_expiry), Field(json_schema_extra=_or_attribute), Since(3)
    ] = None
    """When datapoints expire: an attribute with the time of each, `expires_at`, or a mapping,
    `{from: published, after: 30d}`. Default: never."""

    @model_validator(mode="after")
    def _bounds_leave_room(self) -> LiveSpec:
        for name in ("rows", "bytes"):
            seal, maximum = getattr(self, f"seal_{name}"), getattr(self, f"max_{name}")
            if maximum < seal:
                raise ValueError(f"max_{name} must be at least seal_{name} ({seal}), got {maximum}")
        return self


Language = Literal[
    "none", "arabic", "armenian", "basque", "catalan", "danish", "dutch", "english", "finnish", "french", "german",
    "greek", "hindi", "hungarian", "indonesian", "irish", "italian", "lithuanian", "nepali", "norwegian", "porter",
    "portuguese", "romanian", "russian", "serbian", "spanish", "swedish", "tamil", "turkish", "yiddish",
]  # fmt: skip


def _check_compounds(value: object) -> object:
    # Before pydantic tries the union: its own errors list all branches.
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        if (words := sum(len(line.split()) for line in value)) > MAX_COMPOUND_PARTS:
            raise ValueError(f"must have at most {MAX_COMPOUND_PARTS} words, got {words}")
        return value
    raise ValueError(f"must be true, false, the path of a word list, or a list of words, got {value!r:.200}")


MAX_COMPOUND_PARTS = 50_000
Compounds = Annotated[bool | str | list[str] | None, BeforeValidator(_check_compounds)]


class LexicalSpec(SpecModel):
    """How words are indexed. `lexical: true` takes the defaults."""

    language: Language = "english"
    """Language of the Snowball stemmer; `none` does not stem, for mixed languages."""

    stop_words: Annotated[list[Annotated[str, Field(max_length=128)]], Field(max_length=10_000)] = []  # noqa: RUF012
    """Words that are not indexed. Frequent words hardly affect scores; without them, queries are faster."""

    analyser: Literal[1, 2, 3, 4] | None = None
    """Version of the analyser. Default: an index keeps its version, a new one gets the newest."""

    compounds: Annotated[Compounds, Since(1)] = None
    """Whether compounds are also found by their parts. `true`: parts are words that occur by themselves, learned from
    the input by the first build and by each full build; the path of a text file: also the words of this dictionary; a
    list: these words, frequent ones first; `false`: compounds are not split. Default: `true` for `language: german`.
    Updates keep the words of the index, unless the spec has `false` or a list."""

    scope: Annotated[Literal["passage", "document"] | None, Since(2)] = None
    """Words that a passage is scored by: `passage`, its own; `document`, also those of its whole document, half and
    half. Default: updates keep the scope of the index; a new index, and a full build, get `document` with
    `source.chunk` or `source.document_id`. A build changes it without analysing a text again."""

    @property
    def compound_parts(self) -> tuple[str, ...]:
        """The words that compounds are split into, in lines; empty until they are learned."""
        return tuple(self.compounds) if isinstance(self.compounds, list) else ()

    @property
    def counts_documents(self) -> bool:
        """Whether rows are also scored by the words of their documents; without a scope they are not."""
        return self.scope == "document"

    @property
    def version(self) -> int:
        """The version of the analyser; indexes from before version 2 have none stored, which means 1."""
        return self.analyser or 1

    @property
    def rules(self) -> dict[str, Any]:
        """Everything that affects the terms of a text, as JSON-ready values."""
        rules = {**self.model_dump(exclude={"compounds", "scope"}), "analyser": self.version}
        if parts := " ".join(self.compound_parts):
            # Rules are stored with every batch of updates, so the words are not part of them.
            rules["compounds"] = hashlib.sha256(parts.encode()).hexdigest()
        return rules


def _type_of(declaration: Any) -> object:
    # A mapping without a valid type is refused as an `AttributeSpec`, which says more.
    kind = declaration.type if isinstance(declaration, AttributeSpec) else declaration.get("type")
    return kind if isinstance(kind, str) and kind in get_args(AttributeType) else "string"


def _lexical(value: object) -> object:
    # Before pydantic tries the model: its own errors list the branches of a union.
    if isinstance(value, bool):
        return LexicalSpec() if value else None
    if value is None or isinstance(value, (Mapping, LexicalSpec)):
        return value
    raise ValueError(f"must be true, false or a mapping with `language` and `stop_words`, got {value!r}")


def _or_boolean(schema: dict[str, Any]) -> None:
    schema["anyOf"] = [{"type": "boolean"}, *schema["anyOf"]]


Lexical = Annotated[LexicalSpec | None, BeforeValidator(_lexical), Field(json_schema_extra=_or_boolean)]


def _named_alone(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add `vectors: optional` to a spec that has named vectors only."""
    source = data.get("source")
    has_vectors = data.get("encoder") or getattr(source, "vector", None)
    has_vectors = has_vectors or (isinstance(source, Mapping) and source.get("vector"))
    return {"vectors": "optional", **data} if data.get("named_vectors") and not has_vectors else data


class IndexSpec(SpecModel):
    """The spec of an index. Equal specs over equal input make equal indexes."""

    index: str
    """Name: lower-case letters, digits, `-` and `_`, at most 63."""

    vectors: Annotated[Literal["required", "optional"], Since(1)] = "required"
    """Whether a datapoint must have a vector, or a text to encode; one without is found by filter, by words and by
    sparse vectors only. With `optional`, an index may have no vectors at all: it needs neither `encoder` nor
    `source.vector` then."""

    source: Annotated[SourceSpec, mapping_like(lambda _: "{id: id, text: text}")]
    """What the input is, and which of its fields are what."""

    encoder: Annotated[EncoderSpec | None, mapping_like(lambda text: f"{{model: {text}}}")] = None
    """Required unless the source has vectors, or `vectors: optional`. Where the source has vectors, it encodes text
    queries."""

    vector_model: Annotated[str | None, Field(min_length=1, max_length=1000), Since(3)] = None
    """Model of the vectors that the source and callers give: its name, its digest, or the first digits of that. Vectors
    that are declared to be of another model are refused. Default: the model of `encoder`, if there is one."""

    reranker: Annotated[RerankerSpec | None, mapping_like(lambda text: f"{{model: {text}}}")] = None
    """Required for searches with `rerank`."""

    distance: Distance = "cosine"
    """How vectors are compared. Encoders of texts are made for `cosine`."""

    attributes: Annotated[dict[str, CheckedType], Field(max_length=256)] = {}  # noqa: RUF012
    """Fields of a record to keep as typed, filterable attributes, each with its type; or with a mapping of the type and
    where the values come from (`price: {type: float, from: "Price (USD)"}`)."""

    attribute_specs: dict[str, AttributeSpec] = {}  # noqa: RUF012 -- pydantic copies defaults
    """Those attributes that are written as a mapping. Not a key of its own: written below `attributes`."""

    dynamic: Annotated[bool, Since(1)] = False
    """Whether datapoints may have attributes that are not declared, of any type in each row; all can be filtered by."""

    named_vectors: Annotated[NamedVectorSpecs, Since(1)] = {}  # noqa: RUF012 -- pydantic copies defaults
    """Further dense vectors of a datapoint, by name: each has its own dimensions, distance and encoder, is searched by
    its name, and can be fused with others. A datapoint may lack any of them. Without `encoder` and `source.vector`,
    they are the only vectors."""

    lexical: Lexical = None
    """Also index the words of title and text (BM25): `true`, or a mapping of options."""

    shards: Shards = "auto"
    """Number of hash partitions of the datapoints; `auto`: one per million expected rows, more for many dimensions or
    long texts."""

    target_recall: Annotated[float, Field(ge=0.5, le=0.999)] = 0.95
    """Share of the true nearest neighbours that a default search finds, on average."""

    search: Annotated[SearchSpec, Since(1)] = SearchSpec()
    """Defaults of searches: mode and fusion."""

    scann: ScannSpec = ScannSpec()
    """Parameters of ScaNN, for experts."""

    live: LiveSpec = LiveSpec()
    """Sealing, merging and garbage collection for live updates."""

    _readable_fields: frozenset[str] | None = PrivateAttr(None)
    """The only fields that a caller may read (`readable`); None: all."""

    def readable(self, fields: frozenset[str]) -> IndexSpec:
        """Return the spec as it is for a caller who may read some fields alone: it has no other attributes.

        Of those that are not declared, `readable_dynamic` tells which there are.

        It has no words either where texts may not be read, unless `words` is one of the fields: which words a text has
        tells the text. Nor has it rankings and a link that name other attributes.
        """
        attributes = {name: kind for name, kind in self.attributes.items() if name in fields}
        spec = self.model_copy(
            update={
                "attributes": attributes,
                "search": self.search.readable(attributes),
                "attribute_specs": {
                    name: attribute for name, attribute in self.attribute_specs.items() if name in fields
                },
                "live": self.live.model_copy(update={"expire": None}),
                "lexical": self.lexical if fields & {"text", "words"} else None,
            }
        )
        spec._readable_fields = fields
        return spec

    def may_read(self, field: str) -> bool:
        """Return whether a caller may read a field of datapoints that is no attribute."""
        return self._readable_fields is None or field in self._readable_fields

    @property
    def readable_dynamic(self) -> frozenset[str] | None:
        """The only undeclared attributes that a caller may read, by name; None: all."""
        if self._readable_fields is None:
            return None
        # The latter two open something else.
        return self._readable_fields - self.attributes.keys() - {"vector", "words"}

    @property
    def embeds(self) -> bool:
        """Whether builds encode texts, rather than reading vectors from the source or making rows without vectors."""
        return self.encoder is not None and self.source.vector is None

    @property
    def document_encoders(self) -> dict[str, EncoderSpec]:
        """Encoders that builds encode texts with, by the name of their vectors: unnamed ones may be given."""
        return {name: encoder.documents for name, encoder in self.encoders.items() if name or self.embeds}

    @property
    def named_encoders(self) -> dict[str, EncoderSpec]:
        """Encoders of named vectors, by name; names whose vectors are only given are left out."""
        return {
            name: vector_spec.encoder
            for name, vector_spec in self.named_vectors.items()
            if vector_spec.encoder is not None
        }

    @property
    def encoders(self) -> dict[str, EncoderSpec]:
        """All encoders, by the name of their vectors; "" is the unnamed vector, and comes first."""
        return {**({"": self.encoder} if self.encoder is not None else {}), **self.named_encoders}

    def of_vectors(self, name: str) -> IndexSpec:
        """Return the spec of an index that has the vectors of a name, and nothing else; KeyError if there is none.

        "" is this spec.
        """
        if not name:
            return self
        named = self.named_vectors[name]
        return self.model_copy(
            update={
                "vectors": "required",
                "named_vectors": {},
                "source": SourceSpec.model_validate({"vector": "vector"}),
                "encoder": named.encoder,
                "vector_model": None,
                "distance": named.distance,
                "attributes": {},
                "attribute_specs": {},
                "dynamic": False,
                "lexical": None,
                "search": SearchSpec(),
                "live": self.live.model_copy(update={"expire": None}),
            }
        )

    def text_field(self, name: str) -> str:
        """Return which field of a datapoint the encoder of a name's vectors gets: `title`, `text` or an attribute."""
        return text_field(name, self.named_vectors[name], self.attributes) if name else "text"

    @field_validator("index")
    @classmethod
    def _index_name(cls, value: str) -> str:
        if not INDEX_NAME.fullmatch(value):
            raise ValueError(f"must match {INDEX_NAME.pattern} (it becomes a folder name), got {value!r}")
        return value

    @field_validator("source")
    @classmethod
    def _something_to_index(cls, value: SourceSpec, info: ValidationInfo) -> SourceSpec:
        if value.text is None and value.vector is None and info.data.get("vectors") != "optional":
            raise ValueError("needs `text`, `vector` or both, got neither; or add `vectors: optional`")
        return value

    @field_validator("attributes")
    @classmethod
    def _attribute_names(cls, value: dict[str, AttributeType]) -> dict[str, AttributeType]:
        for name, kind in value.items():
            check_attribute_name(name, kind)
        return value

    @model_validator(mode="before")
    @classmethod
    def _types_apart(cls, data: object) -> object:
        """Part attributes into their types, which all code reads, and the mappings that some are written as."""
        attributes = data.get("attributes") if isinstance(data, Mapping) else None
        if not isinstance(data, Mapping):
            return data
        data = _named_alone(data)
        if "attribute_specs" in data:
            raise ValueError("unknown key `attribute_specs`; write a mapping below `attributes`")
        if not isinstance(attributes, Mapping):
            return data
        specs = {
            name: value for name, value in attributes.items() if isinstance(value, (Mapping, AttributeSpec))
        }
        if not specs:
            return data
        types = {name: _type_of(value) if name in specs else value for name, value in attributes.items()}
        return {**data, "attributes": types, "attribute_specs": specs}

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = as_earlier(self, handler(self))
        specs = fields.pop("attribute_specs", {})
        if specs and "attributes" in fields:
            fields["attributes"] = {**fields["attributes"], **specs}
        return fields

    @field_serializer("lexical", mode="wrap")
    def _lexical_as_written(
        self, value: LexicalSpec | None, handler: SerializerFunctionWrapHandler
    ) -> bool | dict[str, Any]:
        # As users write it; earlier releases read only true and false.
        if value is None or value == LexicalSpec():
            return value is not None
        fields: dict[str, Any] = handler(value)
        return fields

    @model_validator(mode="after")
    def _has_times(self) -> IndexSpec:
        if (expiry := self.live.expire) is not None and self.attributes.get(expiry.path) != "timestamp":
            raise ValueError(
                f"`live.expire`: {expiry.path!r:.80} must be an attribute of type timestamp, "
                f"got {self.attributes.get(expiry.path, 'none of this name')}"
            )
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> IndexSpec:
        has_vectors = self.encoder is not None or self.source.vector is not None
        if not has_vectors and self.vectors == "required":
            raise ValueError(
                "`encoder` is required unless `source.vector` names a field with vectors. For an index of words alone, "
                "add `vectors: optional`"
                if self.lexical
                else "`encoder` is required unless `source.vector` names a field with vectors"
            )
        if self.source.text is None and self.source.vector is None and self.encoder is not None:
            raise ValueError("`encoder` needs `source.text` or `source.vector`")
        check_named_vectors(self.named_vectors, self.attributes, self.source.text)
        if self.source.chunk is not None and not has_vectors:
            raise ValueError("`source.chunk` needs `encoder`, whose tokens it counts")
        if self.lexical and self.source.text is None:
            raise ValueError("`lexical: true` needs `source.text`")
        if self.search.mode in ("lexical", "hybrid") and not self.lexical:
            raise ValueError(f"`search.mode: {self.search.mode}` needs `lexical: true`")
        if self.search.synonyms and not self.lexical:
            raise ValueError("`search.synonyms` needs `lexical: true`")
        for name, text in self.search.ranking.items():
            if name in ("score", "now", *self.attributes):
                raise ValueError(
                    f"`search.ranking.{name}`: is what expressions call something else; take another name"
                )
            try:
                program_of(text, self.attributes)
            except RankingSyntaxError as error:
                raise ValueError(f"`search.ranking.{name}`: {error}") from None
        if self.search.mode in ("dense", "hybrid") and self.encoder is None:
            raise ValueError(f"`search.mode: {self.search.mode}` needs `encoder`")
        if self.source.format in ("datapoints", "managed") and self.attribute_specs:
            name = next(iter(self.attribute_specs))
            raise ValueError(f"attribute {name!r} can only be a type with `format: {self.source.format}`")
        if self.source.format == "managed" and self.source.payload in self.attributes:
            raise ValueError(f"attribute name {self.source.payload!r} is taken with `format: managed`")
        return self


def shard_of(document_id: str, shards: int) -> int:
    """Return the shard of a document, from 0 to `shards - 1`, the same in every process and version.

    The first 8 bytes of BLAKE2b of the UTF-8 id, little-endian, modulo `shards`. Part of the format: changing it
    would scatter the passages of existing documents.
    """
    digest = hashlib.blake2b(document_id.encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "little") % shards


def shards_of_ids(documents: pa.ChunkedArray, shards: int) -> np.ndarray:
    """Return `shard_of` for each id in a column of strings, int64."""
    if shards == 1 or not len(documents):
        return np.zeros(len(documents), np.int64)
    coded = documents.combine_chunks().dictionary_encode()  # hashed once: passages share their document's id
    shard_C = np.array([shard_of(name, shards) for name in coded.dictionary.to_pylist()], np.int64)
    shard_N: np.ndarray = shard_C[coded.indices.to_numpy()]
    return shard_N
