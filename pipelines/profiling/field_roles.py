"""Which fields of a sample are the id, the text, the title, the vector and the attributes.

They are guessed from their values first, and from their names where the values leave a choice.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from scannery.pipelines.profiling.field_profiles import NEARLY_ALL, FieldProfile, is_named_as_vector
from scannery.pipelines.profiling.value_types import TypeGuess

__all__ = ["CUT_VECTORS", "Attribute", "LeftOut", "Role", "Roles", "find_roles"]

TEXT_WORDS = 5
"""Mean number of words from which a field can be the text rather than a name."""
TITLE_CHARS = 300
MAX_ATTRIBUTE_CHARS = 200
MAX_ID_CHARS = 200

_ID_NAMES: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"_?(id|uuid|guid|key|pk|identifier)", re.I), 100),
    (re.compile(r".*([_\W](id|uuid|guid|key|pk)|Id|ID|Uuid|UUID)"), 80),
    (re.compile(r".*\b(no|nr|num|number|nummer|numéro|número|code|sku|isbn|ean|doi|slug)\b\.?", re.I), 60),
    (re.compile(r".*(_no|_nr|_number|_code|_sku)", re.I), 60),
    (re.compile(r"(path|file|filename|url|uri|link|permalink|href)", re.I), 40),
)
_TEXT_NAMES = re.compile(
    r"(text|body|content|contents|description|message|abstract|review|comment|article|transcript|passage|document|story|"
    r"lyrics|notes?|details|inhalt|beschreibung|texte|contenu|texto|contenido|descripción|testo|rendered)", re.I
)  # fmt: skip
_TITLE_NAMES = re.compile(
    r"(title|name|headline|subject|heading|caption|label|titel|überschrift|titre|nom|título|titulo|nombre|titolo|nome|"
    r"betreff|topic)", re.I
)  # fmt: skip
_DOCUMENT_NAMES = re.compile(r"(doc|document|parent|source_doc(ument)?)[_ ]?id", re.I)
_ADDRESS = re.compile(r"(https?://|www\.|[\w.+-]+@[\w-]+\.)\S+")


@dataclasses.dataclass(frozen=True)
class Role:
    """The field of a role, why it was chosen, and what else could be."""

    field: FieldProfile
    why: str
    alternatives: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Attribute:
    """A field to keep as an attribute."""

    field: FieldProfile
    guess: TypeGuess


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """A field without a role."""

    field: FieldProfile
    why: str


@dataclasses.dataclass(frozen=True)
class Roles:
    """The fields of a sample by their roles."""

    id: Role | None
    id_template: str | None
    """Two fields that identify a record together, where no single one does."""
    text: Role | None
    title: Role | None
    vector: Role | None
    document_id: Role | None
    attributes: tuple[Attribute, ...]
    left_out: tuple[LeftOut, ...]


def find_roles(
    profiles: Sequence[FieldProfile],
    paths: Mapping[str, str] = MappingProxyType({}),
    *,
    is_whole: bool = True,
) -> Roles:
    """Return the roles of fields.

    Args:
        profiles: of all fields.
        is_whole: whether the sample is the whole input; else a field with one value may have others further on.
        paths: fields that the user names: `id`, `text`, `title`; those need not be among the profiles.

    """
    filled = [profile for profile in profiles if profile.values]
    vector = _vector(filled)
    candidates = [profile for profile in filled if vector is None or profile is not vector.field]
    named = {role: _named(candidates, path) for role, path in paths.items()}
    id = named.get("id") or _id(candidates)
    text = named.get("text") or _text(candidates, id)
    if text is None and vector is not None:
        text = _short_text(candidates, None, id, only_named=True)
    title = named.get("title") or _title(candidates, text, id)
    if text is None and vector is None:
        text = _short_text(candidates, title, id, only_named=False)
    if text is None and vector is None and title is not None and title.field.words:
        text, title = title, None  # a list of names: they are what is searched
    document_id = next((_role(p, "groups passages") for p in candidates if _groups(p)), None)
    taken = {role.field.path for role in (id, text, title, vector, document_id) if role is not None}
    unassigned = [profile for profile in profiles if profile.path not in taken]
    attributes, left_out = _sorted_out(unassigned, (id, text), is_whole=is_whole)
    template = _pair(candidates) if id is None else None
    return Roles(id, template, text, title, vector, document_id, attributes, left_out)


def _named(profiles: Sequence[FieldProfile], path: str) -> Role:
    profile_of_path = next((profile for profile in profiles if profile.path == path), None)
    return Role(profile_of_path or FieldProfile(path, (path,), -1, 0, ()), "as given")


def _role(field: FieldProfile, why: str) -> Role:
    return Role(field, why)


def _vector(profiles: Sequence[FieldProfile]) -> Role | None:
    candidates = sorted(
        (profile for profile in profiles if profile.is_vector and profile.share >= NEARLY_ALL),
        key=lambda profile: (not is_named_as_vector(profile.parts), profile.position),
    )
    if not candidates:
        return None
    return Role(candidates[0], f"lists of {candidates[0].dimensions} numbers", _paths(candidates[1:]))


def _id(profiles: Sequence[FieldProfile]) -> Role | None:
    scored = sorted(((_id_score(p), p) for p in profiles), key=lambda item: (-item[0], item[1].position))
    best = [(score, profile) for score, profile in scored if score > 0]
    if not best:
        return None
    field = best[0][1]
    if field.distinct == len(field.values):
        why = "in every record, and different in each"
    else:
        repeated = len(field.values) - field.distinct
        why = f"{repeated:,} of {field.records:,} records repeat an earlier one: these are refused"
    return Role(field, why, _paths(profile for _, profile in best[1:]))


def _id_score(profile: FieldProfile) -> int:
    """Return how well a field identifies records, 0 for not at all."""
    if not _can_identify(profile):
        return 0
    by_name = max((score for pattern, score in _ID_NAMES if pattern.fullmatch(profile.name)), default=0)
    unique = profile.distinct / len(profile.values)
    if unique < NEARLY_ALL or (unique < 1 and by_name < 80):
        return 0
    has_spaces = profile.is_text and any(" " in str(value) for value in profile.values)
    by_values = 1 if has_spaces else 20 if profile.is_text else 10
    return max(1, by_name + by_values + (5 if profile.position == 0 else 0) - 4 * profile.depth)


_SIGN = r"(?:[€$£¥₽₹₩₺%円元]|EUR|USD|GBP|CHF|JPY|CNY|SEK|NOK|DKK|PLN|CZK|INR|AUD|CAD|BRL|kr|zł|Kč|Ft)"
_DIGITS = r"\(?[+-]?\d[\d.,' \u00a0\u202f]*\)?"
_AMOUNT = re.compile(rf"-?{_SIGN}\s?{_DIGITS}|{_DIGITS}\s?{_SIGN}")
_MEASURE = re.compile(
    r".*\b(zip|zipcode|postcode|postal|plz|phone|tel|telefon|fax|mobile|salary|price|preis|prix|precio|prezzo|amount|betrag|"
    r"total|revenue|umsatz|sum|summe|cost|kosten|share|anteil|units|qty|quantity|menge|score|rating|size|count|year|jahr|"
    r"lat|latitude|lon|lng|longitude|age|width|height|weight)\b.*", re.I
)  # fmt: skip


def _is_amount(profile: FieldProfile) -> bool:
    """Return whether texts are amounts, such as `$3,400.50`, `12%` and `9,99 €`."""
    return profile.is_text and all(_AMOUNT.fullmatch(text) for text in profile.values)


def _measures(profile: FieldProfile) -> bool:
    """Return whether a field measures or describes: other records may have the same value by chance."""
    if any(pattern.fullmatch(profile.name) for pattern, _ in _ID_NAMES[:2]):
        return False
    return _MEASURE.fullmatch(re.sub(r"[\W_]+|(?<=[a-z])(?=[A-Z])", " ", profile.name)) is not None


def _can_identify(profile: FieldProfile) -> bool:
    """Return whether every record has a short text or an integer in a field, which is no time or the like."""
    if profile.share < 1 or not profile.values or not profile.path or profile.words >= TEXT_WORDS:
        return False
    are_plain = all(isinstance(value, (str, int)) and not isinstance(value, bool) for value in profile.values)
    is_other = profile.guess is not None and profile.guess.kind not in ("string", "int")
    is_text = bool(_TEXT_NAMES.fullmatch(profile.name)) and profile.is_text
    if _is_amount(profile) or _measures(profile) or is_text:
        return False
    return are_plain and not is_other and profile.longest <= MAX_ID_CHARS


def _text(profiles: Sequence[FieldProfile], id: Role | None) -> Role | None:
    candidates = [p for p in profiles if p.words >= TEXT_WORDS and (id is None or p is not id.field)]

    def score(profile: FieldProfile) -> float:
        size = min(profile.words, 400.0) * profile.share
        return (
            size
            * (3 if _is_named(profile, _TEXT_NAMES) else 1)
            / (3 if _is_named(profile, _TITLE_NAMES) else 1)
        )

    candidates.sort(key=lambda profile: (-score(profile), profile.position))
    if not candidates:
        return None
    why = f"{round(candidates[0].words):,} words on average, at most {candidates[0].longest:,} characters"
    return Role(candidates[0], why, _paths(candidates[1:]))


def _short_text(
    profiles: Sequence[FieldProfile], title: Role | None, id: Role | None, *, only_named: bool
) -> Role | None:
    """Return the text where all texts are short: a field that is named as texts are, or has twice the title's words.

    With `only_named`, only the former.
    """
    taken = {role.field.path for role in (title, id) if role is not None}
    least = 2 if title is None else max(2, 2 * title.field.words)

    def can_be(profile: FieldProfile) -> bool:
        named = _is_named(profile, _TEXT_NAMES) and not _is_named(profile, _TITLE_NAMES)
        is_long = profile.words >= (1.5 if named else least) and _is_telling(profile, 0.5)
        is_text = profile.is_text and not _is_code(profile) and not _is_amount(profile)
        return is_text and is_long and profile.path not in taken and (named or not only_named)

    candidates = sorted(
        filter(can_be, profiles), key=lambda p: (not _is_named(p, _TEXT_NAMES), -p.words, p.position)
    )
    return (
        Role(candidates[0], "short texts; the longest ones", _paths(candidates[1:])) if candidates else None
    )


def _title(profiles: Sequence[FieldProfile], text: Role | None, id: Role | None) -> Role | None:
    taken = {role.field.path for role in (text, id) if role is not None}
    taken |= {profile.path for profile in profiles if _is_same(profile, id) or _is_same(profile, text)}

    def can_be(profile: FieldProfile) -> bool:
        is_short = profile.is_text and 0 < profile.longest <= TITLE_CHARS and profile.words <= 20
        is_address = any(_ADDRESS.match(value) for value in profile.values[:20]) if is_short else False
        is_id = any(pattern.fullmatch(profile.name) for pattern, _ in _ID_NAMES[:2])
        return (
            profile.path not in taken and is_short and not is_address and not is_id and profile.share >= 0.5
        )

    candidates = [profile for profile in profiles if can_be(profile)]
    by_name = [
        profile for profile in candidates if _is_named(profile, _TITLE_NAMES) and _is_telling(profile, 0.5)
    ]
    beside = None if text is None else text.field.parts[:-1]
    by_name.sort(key=lambda profile: (_title_rank(profile), profile.parts[:-1] != beside, profile.position))
    telling = [profile for profile in candidates if _is_telling(profile, 0.8) and not _is_code(profile)]
    if by_name:
        alternatives = [profile for profile in [*by_name, *telling] if profile is not by_name[0]]
        return Role(by_name[0], "short texts, by their name titles", _paths(alternatives))
    return (
        Role(telling[0], "short texts, different in most records", _paths(telling[1:])) if telling else None
    )


def _title_rank(profile: FieldProfile) -> int:
    first = re.compile(r"(title|headline|subject|titel|titre|título|titulo|titolo)", re.I)
    return 0 if _is_named(profile, first) else 1


def _is_named(profile: FieldProfile, names: re.Pattern[str]) -> bool:
    """Return whether a word of a field's name, or the field around it (`title.rendered`), is one of some names."""
    words = [word for part in profile.parts[-2:] for word in re.split(r"[\W_]+|(?<=[a-z])(?=[A-Z])", part)]
    return any(names.fullmatch(word) for word in words)


def _is_telling(profile: FieldProfile, least: float) -> bool:
    return profile.distinct >= least * len(profile.values)


def _is_code(profile: FieldProfile) -> bool:
    """Return whether texts are codes rather than names: digits in most, or no letters."""
    codes = sum(any(char.isdigit() for char in value) and " " not in value for value in profile.values)
    return codes > 0.5 * len(profile.values)


def _groups(profile: FieldProfile) -> bool:
    return (
        bool(_DOCUMENT_NAMES.fullmatch(profile.name))
        and profile.share == 1
        and profile.distinct < len(profile.values)
    )


def _sorted_out(
    profiles: Sequence[FieldProfile], copied: Sequence[Role | None], *, is_whole: bool
) -> tuple[tuple[Attribute, ...], tuple[LeftOut, ...]]:
    attributes, left_out = [], []
    for profile in profiles:
        why = _objection(profile, copied)
        if why is None and is_whole and _is_constant(profile):
            why = "the same in every record"
        if why is None and profile.guess is not None:
            attributes.append(Attribute(profile, profile.guess))
        else:
            left_out.append(LeftOut(profile, why or "no attribute can hold it"))
    return tuple(attributes), tuple(left_out)


def _is_same(profile: FieldProfile, role: Role | None) -> bool:
    return role is not None and bool(profile.values) and list(profile.values) == list(role.field.values)


CUT_VECTORS = "vectors of which only some numbers were written"
_OBJECTIONS: tuple[tuple[Callable[[FieldProfile], bool], str], ...] = (
    (lambda p: not p.path.strip(), "has no name"),
    (lambda p: not p.values, "has no value in the sample"),
    (lambda p: p.is_cut, f"{CUT_VECTORS}: `...` stands for the others; write them as JSON lists"),
    (lambda p: p.is_vector, "lists of numbers; `named_vectors` can have more of them"),
    (lambda p: p.guess is None, "lists or mappings; one such field can be the `payload`"),
    (lambda p: p.is_text and p.longest > MAX_ATTRIBUTE_CHARS, "long texts: no use in filters"),
)


def _objection(profile: FieldProfile, copied: Sequence[Role | None]) -> str | None:
    for role in copied:
        if role is not None and _is_same(profile, role):
            return f"the same as {role.field.path}"
    return next((why for check, why in _OBJECTIONS if check(profile)), None)


def _is_constant(profile: FieldProfile) -> bool:
    return profile.records > 3 and profile.distinct == 1 and profile.share == 1


def _pair(profiles: Sequence[FieldProfile]) -> str | None:
    """Return the template of two short fields that are different together in each record, None if there are none."""

    def can_be(profile: FieldProfile) -> bool:
        is_plain = all(
            isinstance(value, (str, int)) and not isinstance(value, bool) for value in profile.values
        )
        return profile.share == 1 and is_plain and 0 < profile.longest <= 100 and profile.words < TEXT_WORDS

    numbers = [p for p in profiles if p.share == 1 and p.values and all(type(v) is int for v in p.values)]
    candidates = [profile for profile in profiles if can_be(profile) or profile in numbers]
    for first, second in itertools.combinations(candidates[:20], 2):
        if len({*zip(first.values, second.values, strict=True)}) == first.records:
            return f"{{{first.path}}}-{{{second.path}}}"
    return None


def _paths(profiles: Iterator[FieldProfile] | Sequence[FieldProfile]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(profile.path for profile in profiles))[:4]
