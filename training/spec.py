"""The file that says what is trained, on which index, and by which judged queries it is compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, ValidationError

from scannery.indexer.errors import InvalidSpecError
from scannery.indexer.spec.model import INDEX_NAME, SpecModel

__all__ = ["EvaluationSpec", "JudgedQueries", "TrainingSpec", "load_training_spec"]


class JudgedQueries(SpecModel):
    """Queries with judgements, in files as `scannery evaluate` reads them; paths are relative to the spec's folder."""

    queries: str
    """JSON lines with `_id` and `text` (BEIR), .tsv, or a .txt with one per line."""
    qrels: str
    """Judgements in BEIR's or TREC's format, or JSON lines."""
    passages: bool = False
    """Whether judgements name datapoints, not documents."""


class GuardSpec(JudgedQueries):
    """Judged queries that a candidate may not be worse for."""

    name: str
    """Name in reports."""


class EvaluationSpec(JudgedQueries):
    """The judged queries that a candidate is fitted to and compared by, and those that it may not harm."""

    guards: list[GuardSpec] = Field(default_factory=list)
    """Other kinds of queries of the same index."""
    sample: Annotated[int, Field(ge=1000, le=10_000_000)] = 10_000
    """Passages at most that a new encoder of documents embeds to be compared."""


Weight = Annotated[float, Field(ge=0, le=1000)]


class SignalsSpec(SpecModel):
    """Weights of what gives the pairs that an encoder is trained by; what gives none is left out."""

    judged: Weight = 1.0
    """A judged query, and the best passage of a document that answers it."""
    title_passage: Weight = 1.0
    """A title, and a passage of its document without it."""
    question_answer: Weight = 1.0
    """A question in a passage, and what follows it."""

    @property
    def weights(self) -> dict[str, float]:
        """The weights by the name of the signal."""
        weights: dict[str, float] = self.model_dump()
        return weights


class LossSpec(SpecModel):
    """What an encoder is fitted by."""

    scale: Annotated[float, Field(gt=0, le=1000)] | None = None
    """What scores are multiplied by before their softmax: the higher, the more the first few documents matter; default:
    40 where queries alone are encoded anew, else 20."""


class CheckpointSpec(SpecModel):
    """When a training is saved, so that the same command goes on after it was killed."""

    every_s: Annotated[float, Field(ge=0)] = 60.0
    """Seconds between two checkpoints; the first of an attempt comes after an eighth of that, the next ones each after
    twice the time."""
    keep: Annotated[int, Field(ge=1, le=100)] = 2
    """Number of checkpoints that are kept."""


class TrainingSpec(SpecModel):
    """What is trained."""

    name: Annotated[str, Field(pattern=f"^{INDEX_NAME.pattern}$")]
    """Name of the model; each training makes its next version."""
    index: str
    """Index, or alias, whose hits are ordered."""
    evaluate: EvaluationSpec
    seed: Annotated[int, Field(ge=0, lt=1 << 31)] = 1
    """Seed of everything random."""
    steps: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Steps of a training of an encoder; default: of queries alone so many that each is seen eight times, at least 16;
    of both sides 30."""
    batch: Annotated[int, Field(ge=1, le=65536)] | None = None
    """Queries or pairs of a step at most; default: 64 queries where queries alone are encoded anew, else 32 pairs."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 5e-5
    """Highest learning rate, which is reached after a tenth of the steps and falls to 0."""
    loss: LossSpec = LossSpec()
    signals: SignalsSpec = SignalsSpec()
    average_with_base: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the trained weights in those of a trained encoder of documents; the remainder is the model that it was
    trained from."""
    checkpoint: CheckpointSpec = CheckpointSpec()


def load_training_spec(path: str | Path) -> tuple[TrainingSpec, Path]:
    """Return the spec in a YAML or JSON file, and the folder that its paths are relative to.

    Raises:
        InvalidSpecError: there is no such file, or a key is wrong; the message names it.

    """
    file = Path(path)
    try:
        data = yaml.safe_load(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidSpecError(f"training spec {path}: {reason}", field="spec") from error
    except yaml.YAMLError as error:
        raise InvalidSpecError(f"training spec {path} is no YAML: {error}", field="spec") from error
    if not isinstance(data, dict):
        raise InvalidSpecError(
            f"training spec {path}: must be a mapping with name, index and evaluate", field="spec"
        )
    try:
        return TrainingSpec.model_validate(data), file.parent
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "spec"
        raise InvalidSpecError(f"training spec {path}: {field}: {first['msg']}", field=field) from error
