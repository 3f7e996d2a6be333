"""A commented spec for a sample of the input, which builds."""

from __future__ import annotations

import dataclasses
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, get_args

import yaml

from scannery.embed.models.recommended_models import MULTILINGUAL, RecommendedModel, recommended_model
from scannery.embed.models.token_counts import TokenCounter
from scannery.embed.text.language import UNKNOWN, languages_of
from scannery.embed.text.transcripts import spoken_text
from scannery.indexer.datapoints.passages import PASSAGE_ATTRIBUTES
from scannery.indexer.spec.attribute_spec import ATTRIBUTE_NAME, RESERVED_COLUMNS
from scannery.indexer.spec.spec import IndexSpec, Language
from scannery.indexer.spec.spec_files import parse_spec
from scannery.pipelines.errors import SpecConflictError
from scannery.pipelines.profiling.checking import ID_WARNINGS, CheckReport, check_sample, counter_of
from scannery.pipelines.profiling.field_profiles import FieldProfile, profile_fields
from scannery.pipelines.profiling.field_roles import CUT_VECTORS, Attribute, Role, Roles, find_roles
from scannery.pipelines.profiling.sample import Sample, read_sample
from scannery.pipelines.profiling.value_types import TypeGuess
from scannery.pipelines.sources import HEADED
from scannery.pipelines.sources.documents.html_pages import HTML_SHARE, html_share

__all__ = ["Draft", "attribute_name", "draft_spec", "index_name"]

LANGUAGE_TEXTS = 200
CHARS_PER_TOKEN = 4
DOCUMENT_FORMATS = HEADED | {"pdf", "text"}
"""Formats of which a file, or an entry of a feed, is a document."""
CHUNK = {"max_tokens": 128, "overlap_tokens": 16}
MAX_ATTRIBUTES = 100
WIDTH = 110
"""Width of a line of the spec, in characters; longer comments stand above."""
_READING = {
    "format": "the files are tables",
    "records": "the list of records in each file",
    "csv": "how the files are written",
}
_GENERIC = frozenset({"name", "value", "id", "rendered", "type", "key", "label", "count", "date", "time"})


@dataclasses.dataclass(frozen=True)
class Draft:
    """A spec that was drafted."""

    text: str
    """The YAML, with comments."""

    spec: IndexSpec
    report: CheckReport
    """What it makes of the sample."""


@dataclasses.dataclass(frozen=True)
class _Line:
    """An entry of the spec, on one line."""

    key: str
    value: Any
    why: str = ""
    is_comment: bool = False
    """Whether it is only shown, for users to take."""

    def text(self, indent: str) -> str:
        entry = f"{indent}{'# ' if self.is_comment else ''}{self.key}: {_inline(self.value)}"
        why = " ".join(self.why.split())
        if not why or len(entry) + len(why) < WIDTH:
            return f"{entry}  # {why}" if why else entry
        above = textwrap.wrap(why, WIDTH - 2, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
        return "\n".join([*above, entry])


def draft_spec(
    sample: Sample,
    inputs: Sequence[str],
    *,
    overrides: Mapping[str, str],
    encoder: str | None = None,
    source: Mapping[str, Any] | None = None,
    path: str = "spec.yaml",
) -> Draft:
    """Return a spec for a sample.

    Args:
        sample: of the input.
        inputs: as the user gave them, for the index's name and the comments.
        overrides: fields of `id`, `text` and `title` that the user names.
        encoder: a model that the user names.
        source: keys of `source` that reading the input takes: `format`, `csv`.
        path: where the spec will be, for the comments.

    Raises:
        SpecConflictError: no field has texts or vectors; the message names the fields.

    """
    profiles = profile_fields([record.fields for record in sample.records])
    roles = find_roles(profiles, overrides, is_whole=sample.is_whole)
    _check_roles(roles, profiles, sample)
    refused: dict[str, list[str]] = {}
    while True:
        lines = _Drafting(sample, roles, encoder, source or {}, refused).lines()
        text = _page(lines, sample, inputs, path)
        spec = parse_spec(yaml.safe_load(text))
        if spec.source.generated_id is not None:  # ids are made when records are read
            sample = read_sample(inputs, spec.source, len(sample.records) + len(sample.letters))
        report = check_sample(spec, sample, counter_of(spec, None))
        faults = {fault.field: fault.message for fault in report.faults if fault.field is not None}
        worse = [name for name in _refused_attributes(spec, report) if len(refused.get(name, ())) < 2]
        if not worse:
            return Draft(text, spec, report)
        for field in worse:
            refused.setdefault(field, []).append(faults[field])


def index_name(inputs: Sequence[str]) -> str:
    """Return the name of an index of some inputs: that of the first file or folder, in lower case."""
    parts = [part for part in PurePosixPath(inputs[0]).parts if not re.search(r"[*?\[]", part)]
    stem = parts[-1].split(".")[0] if parts else ""
    name = re.sub(r"[^a-z0-9_-]+", "-", _ascii(stem).lower()).strip("-_")[:63]
    return name or "documents"


def attribute_name(profile: FieldProfile, taken: Iterable[str]) -> str:
    """Return the name of an attribute for a field: its own in ASCII, with that of the mapping around it if need be."""
    parts = [part for part in map(_word, profile.parts) if part]
    if not parts:
        return f"field_{profile.position}"
    start = -2 if parts[-1] in _GENERIC else -1
    names = [profile.path, "_".join(parts[start:]), "_".join(parts), f"own_{'_'.join(parts)}"]
    names += [f"{names[1]}_{number}" for number in range(2, 1000)]
    used = {*taken, *RESERVED_COLUMNS}
    return next(name for name in names if ATTRIBUTE_NAME.fullmatch(name) and name not in used)


def _check_roles(roles: Roles, profiles: Sequence[FieldProfile], sample: Sample) -> None:
    if not sample.records:
        letter = sample.letters[0]
        raise SpecConflictError(
            f"no record can be read; the first fault: {letter.message} ({letter.source})", field="input"
        )
    names = ", ".join(profile.path for profile in profiles[:20]) or "none"
    if roles.text is None and roles.vector is None:
        cut = "".join(f"; {profile.path}: {CUT_VECTORS}" for profile in profiles if profile.is_cut)
        raise SpecConflictError(
            f"no field has texts or vectors; name one with --text (fields: {names}){cut}", field="source.text"
        )


def _refused_attributes(spec: IndexSpec, report: CheckReport) -> set[str]:
    paths = {name: attribute.path or name for name, attribute in spec.attribute_specs.items()}
    attributes = {paths.get(name, name) for name in spec.attributes}
    return {fault.field for fault in report.faults if fault.field in attributes and fault.field is not None}


class _Drafting:
    """The lines of a spec, section by section.

    Args:
        sample: of the input.
        roles: of its fields.
        encoder: a model that the user names.
        source: keys of `source` that reading the input takes.
        refused: paths of attributes whose type refuses records of the sample, with a message of each type that was
            tried: the guessed one, then string.

    """

    def __init__(
        self,
        sample: Sample,
        roles: Roles,
        encoder: str | None,
        source: Mapping[str, Any],
        refused: Mapping[str, Sequence[str]],
    ) -> None:
        self._sample, self._roles, self._reading, self._refused = sample, roles, dict(source), refused
        texts = (
            [] if roles.text is None else [text for text in roles.text.field.values if isinstance(text, str)]
        )
        # What is embedded of a transcript: without time marks.
        spoken = [spoken_text(text) for text in texts]
        self._has_transcripts = any(text is not None for text in spoken)
        self._texts = [said or text for said, text in zip(spoken, texts, strict=True)]
        self._languages = languages_of(self._texts[:LANGUAGE_TEXTS])
        self._model = recommended_model(self._languages)
        self._named_model = encoder

    def lines(self) -> dict[str, list[_Line]]:
        """Return the lines of each section, in order."""
        sections = {"source": self._source()}
        if self._roles.vector is None:
            sections["encoder"] = self._encoder()
        sections["attributes"] = self._attributes()
        if self._roles.text is not None:
            sections["lexical"] = self._lexical()
        return sections

    def _source(self) -> list[_Line]:
        roles, why = self._roles, _READING
        lines = [_Line(key, value, why.get(key, "")) for key, value in self._reading.items()]
        if roles.id is not None:
            lines.append(_role_line("id", roles.id))
        elif roles.id_template is not None:
            lines.append(
                _Line("id", roles.id_template, "no field alone is different in every record; these two are")
            )
        else:
            kind = self._generated_id()
            lines.append(_Line("id", {"from": kind}, f"no field can be the id; {ID_WARNINGS[kind]}"))
        for name in ("text", "title", "vector", "document_id"):
            role = getattr(roles, name)
            if role is not None:
                lines.append(_role_line(name, role))
        share = 0.0 if self._sample.formats & HEADED else html_share(self._texts)
        if roles.text is not None and share >= HTML_SHARE:
            lines.append(_Line("text_format", "html", f"{share:.0%} of the texts have tags of HTML"))
        if roles.vector is None:
            lines.append(self._chunk())
        return lines

    def _generated_id(self) -> str:
        """Return what ids are made from: the content, unless some records are equal."""
        different = {repr(sorted(record.fields.items(), key=repr)) for record in self._sample.records}
        return "content" if len(different) == len(self._sample.records) else "row"

    def _chunk(self) -> _Line:
        name, prompt = self._named_model or self._model.name, self._model.document_prompt
        counter = TokenCounter.of_local(name, prompt="" if self._named_model else prompt or "")
        limit = counter.passage_tokens if counter else self._model.tokens
        sizes = (
            counter.count(self._texts) if counter else [len(text) // CHARS_PER_TOKEN for text in self._texts]
        )
        over, longest = sum(size > limit for size in sizes), max(sizes, default=0)
        about = "" if counter else "about "
        if over:
            why = (
                f"{over:,} of {len(sizes):,} texts are longer than the {limit} tokens that the encoder reads "
                f"(the longest has {about}{longest:,}): cut into passages, nothing is lost"
            )
            return _Line("chunk", CHUNK, why)
        if self._sample.formats & DOCUMENT_FORMATS:
            return _Line("chunk", CHUNK, "documents are cut into passages, so that a hit is a place in one")
        why = f"not needed: the longest text has {about}{longest:,} tokens, and the encoder reads {limit}"
        return _Line("chunk", CHUNK, why, is_comment=True)

    def _encoder(self) -> list[_Line]:
        spoken = _spoken(self._languages)
        if self._named_model is not None:
            return [
                _Line("model", self._named_model, f"as given; the texts are {spoken}"),
                *self._prompts(None),
            ]
        alternative = "" if self._model is MULTILINGUAL else f"; for other languages {MULTILINGUAL.name}"
        why = f"the texts are {spoken}; this model is {self._model.about}{alternative}"
        return [_Line("model", self._model.name, why), *self._prompts(self._model)]

    def _prompts(self, model: RecommendedModel | None) -> list[_Line]:
        if model is None and self._named_model == MULTILINGUAL.name:
            model = MULTILINGUAL
        if model is None or model.query_prompt is None:
            return []
        return [
            _Line("query_prompt", model.query_prompt, "the model was trained with these prompts"),
            _Line("document_prompt", model.document_prompt),
        ]

    def _attributes(self) -> list[_Line]:
        lines = self._of_passages()
        names = [line.key for line in lines]
        for number, attribute in enumerate(self._roles.attributes):
            name = attribute_name(attribute.field, names)
            names.append(name)
            line = self._attribute(name, attribute)
            lines.append(line if number < MAX_ATTRIBUTES else dataclasses.replace(line, is_comment=True))
        for field in self._roles.left_out:
            if field.field.guess is not None and field.field.parts[-1].strip():
                name = attribute_name(field.field, names)
                names.append(name)
                kind = _attribute_value(name, field.field, field.field.guess)
                lines.append(_Line(name, kind, f"left out: {field.why}", is_comment=True))
        return lines

    def _of_passages(self) -> list[_Line]:
        """Return the attributes that passages have of their own, where the fields of the input have not these names."""
        formats = self._sample.formats
        fields = {attribute.field.path for attribute in self._roles.attributes}
        columns = {
            "section": (bool(formats & HEADED), "the headings above a passage"),
            "page": ("pdf" in formats, "the page of a PDF that a passage begins on"),
            "speakers": (self._has_transcripts, "who speaks in a passage of a transcript"),
        }
        return [
            _Line(name, PASSAGE_ATTRIBUTES[name], why)
            for name, (is_there, why) in columns.items()
            if is_there and name not in fields and self._roles.vector is None
        ]

    def _attribute(self, name: str, attribute: Attribute) -> _Line:
        profile, guess = attribute.field, attribute.guess
        why = [guess.why]
        messages = self._refused.get(profile.path, ())
        if messages:
            guess = TypeGuess("string", "")
            why = [f"no {attribute.guess.kind}: {messages[0]}"]
        if profile.share < 1:
            why.append(f"in {profile.share:.0%} of the records")
        why.append(_examples(profile))
        return _Line(
            name, _attribute_value(name, profile, guess), "; ".join(why), is_comment=len(messages) > 1
        )

    def _lexical(self) -> list[_Line]:
        recognised = [(language, share) for language, share in self._languages if language != UNKNOWN]
        first, share = recognised[0] if recognised else (UNKNOWN, 0.0)
        stems = first in get_args(Language) and share >= 0.6 * sum(share for _, share in recognised)
        language = first if stems else "none"
        if language == "english":
            return [
                _Line(
                    "lexical", True, "also search by words, which finds names and codes; English word forms"
                )
            ]
        why = (
            f"also search by words; {'word forms of this language' if stems else 'words as they are written'}"
        )
        return [_Line("lexical", {"language": language}, why)]


def _role_line(name: str, role: Role) -> _Line:
    alternatives = f"; also possible: {', '.join(role.alternatives)}" if role.alternatives else ""
    share = (
        ""
        if role.field.share == 1 or not role.field.records
        else f"; in {role.field.share:.0%} of the records"
    )
    return _Line(name, role.field.path, f"{role.why}{share}{alternatives}")


def _attribute_value(name: str, profile: FieldProfile, guess: TypeGuess) -> str | dict[str, Any]:
    if name == profile.path and not guess.options:
        return guess.kind
    source = {} if name == profile.path else {"from": profile.path}
    return {"type": guess.kind, **source, **guess.options}


def _examples(profile: FieldProfile) -> str:
    return f"such as {', '.join(profile.examples())}"


def _spoken(languages: Sequence[tuple[str, float]]) -> str:
    recognised = [(language, share) for language, share in languages if language != UNKNOWN and share >= 0.02]
    if not recognised:
        return "in no language that is recognised"
    return ", ".join(f"{language.capitalize()} ({share:.0%})" for language, share in recognised[:4])


def _page(sections: Mapping[str, list[_Line]], sample: Sample, inputs: Sequence[str], path: str) -> str:
    shown = " ".join(inputs[:3]) + (" …" if len(inputs) > 3 else "")
    of = "all" if sample.is_whole else "the first"
    lines = [
        f"# Drafted by `scannery spec init` from {of} {len(sample.records):,} records of {shown}.",
        f"# Check:  scannery spec check {path} --input {shown}",
        f"# Build:  scannery build {path} --input {shown} --store ./store",
        "# All keys: docs/spec.md",
        "",
        _Line("index", index_name(inputs), "the index's name: lower-case letters, digits, - and _").text(""),
    ]
    for name, entries in sections.items():
        lines.append("")
        if name == "lexical":
            lines += [entry.text("") for entry in entries]
            continue
        # A mapping of which every line is a comment would be null.
        is_empty = all(entry.is_comment for entry in entries)
        comment = (
            "  # typed fields, for filters (--where); returned with each hit" if name == "attributes" else ""
        )
        lines.append(f"{'# ' if is_empty else ''}{name}:{comment}")
        lines += [entry.text("  ") for entry in entries]
    return "\n".join(lines) + "\n"


def _inline(value: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, str) and (not _PLAIN.fullmatch(value) or yaml.safe_load(value) != value):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t") + '"'
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...").strip()


_PLAIN = re.compile(r"[\w/][\w/.-]*")


def _word(text: str) -> str:
    """Return a name in lower case and ASCII, without what is in brackets; empty if it has no such letters."""
    bare = re.sub(r"\([^)]*\)|\[[^\]]*\]", "", text)
    for candidate in (bare, text):
        words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", _ascii(candidate))
        if words:
            return "_".join(words).lower()[:24].rstrip("_")
    return ""


def _ascii(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text.replace("ß", "ss"))
    return decomposed.encode("ascii", "ignore").decode()
