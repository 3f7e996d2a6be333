"""Learn the words that an index splits compounds into, from a sample of its input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from scannery.indexer.datapoints.field_mapping import FieldMapping
from scannery.indexer.lexical.analyser import ANALYSER_VERSION, stem_of
from scannery.indexer.lexical.compounds import chosen_parts
from scannery.indexer.lexical.words import words_of
from scannery.indexer.manifest import Manifest
from scannery.indexer.spec.spec import IndexSpec, LexicalSpec
from scannery.indexer.versions.creation import keeps_compounds
from scannery.pipelines.errors import SpecConflictError
from scannery.pipelines.sources import Fields, Part, Record, one_by_one, read_batches

__all__ = ["LANGUAGES", "learned_compounds", "with_compounds"]

LANGUAGES = frozenset({"german"})
"""Languages whose compounds are split by default: those in which that was measured (docs/benchmarks/lexical.md)."""

SAMPLE_CHARACTERS = 4 << 20
"""Of texts, about 600,000 words, read while planning."""
SAMPLED_PARTS = 32
"""Parts of the input that the sample comes from, spread evenly: of each its beginning."""


def with_compounds(spec: IndexSpec, parent: Manifest | None, parts: Sequence[Part]) -> IndexSpec:
    """Return the spec with the words that compounds are split into, if the index has to learn them.

    An update keeps the words of the index, so that scores of its rows stay comparable.

    Args:
        spec: of the build.
        parent: the version that is updated; None for a new index and for a full build, which learn the words.
        parts: of the input.

    Raises:
        SpecConflictError: the dictionary that the spec names cannot be read.

    """
    if not parts or spec.lexical is None or not _learns(spec.lexical, parent):
        return spec
    given = spec.lexical.compounds
    dictionary = _dictionary(given) if isinstance(given, str) else ()
    lines = learned_compounds(_texts(spec, parts), spec.lexical, dictionary)
    return spec.model_copy(update={"lexical": spec.lexical.model_copy(update={"compounds": lines})})


def _learns(lexical: LexicalSpec, parent: Manifest | None) -> bool:
    given = lexical.compounds
    if given is False or isinstance(given, list):
        return False
    if parent is not None and parent.segments and parent.spec.lexical is not None:
        return not keeps_compounds(lexical, parent.spec.lexical)
    return given is not None or lexical.language in LANGUAGES


def learned_compounds(
    texts: Iterable[str], lexical: LexicalSpec, dictionary: Iterable[str] = ()
) -> list[str]:
    """Return the words that compounds are split into, in lines as `costs_of` takes them.

    Args:
        texts: a sample; as many are read as have SAMPLE_CHARACTERS.
        lexical: language and version of the analyser.
        dictionary: other words that compounds may have.

    """
    version, counts, read = lexical.analyser or ANALYSER_VERSION, Counter[str](), 0
    for text in texts:
        counts.update(words_of(text[: SAMPLE_CHARACTERS - read], version))
        read += len(text)
        if read >= SAMPLE_CHARACTERS:
            break
    others = {word for line in dictionary for word in words_of(line, version)}
    return chosen_parts(counts, stem_of(lexical.language), others)


def _texts(spec: IndexSpec, parts: Sequence[Part]) -> Iterator[str]:
    """Yield titles and texts of records from the beginning of some parts."""
    mapped, fields = FieldMapping.of(spec).fields, Fields.of(spec)
    sources = [mapped[column] for column in ("title", "text") if column in mapped]
    count = min(len(parts), SAMPLED_PARTS)
    for place in range(count):
        left = SAMPLE_CHARACTERS // count
        for item in one_by_one(read_batches(parts[len(parts) * place // count], fields)):
            values = [each.value(item.fields) for each in sources] if isinstance(item, Record) else []
            texts = [value[:left] for value in values if isinstance(value, str)]
            yield from texts
            left -= sum(map(len, texts))
            if left <= 0:
                break


def _dictionary(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecConflictError(
            f"lexical.compounds: cannot read the word list {path}: {error}", field="lexical.compounds"
        ) from error
