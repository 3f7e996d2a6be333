"""What the processes that train one encoder agree on, and the part of those that follow the leader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from scannery.embed.models.trainable import TrainableModel
from scannery.indexer import Store
from scannery.indexer.spec.spec import Distance, EncoderSpec
from scannery.pipelines.errors import CollectionError
from scannery.pipelines.planning.planned_encoder import PlannedEncoder
from scannery.training.encoder.contrastive import PairSteps
from scannery.training.errors import StoppedError
from scannery.training.exports import trainable
from scannery.training.pairs.batches import PairBatches
from scannery.training.runs.checkpoints import Checkpoints
from scannery.training.runs.replicas import Replicas
from scannery.training.runs.run import RunSettings, run_steps

__all__ = ["EncoderFit", "follow"]


class EncoderFit(BaseModel):
    """How one encoder is fitted to pairs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base: EncoderSpec
    """Model that it begins with, and its options."""
    base_digest: str
    """Digest of the fingerprint of that model."""
    run: RunSettings
    """How steps are taken."""
    distance: Distance
    """Distance of the index."""
    scale: float
    """Scale of scores."""
    dtype: str
    """Type that matrices are multiplied in."""

    def announce(self, replicas: Replicas) -> None:
        """Let the processes that follow this one begin with the same steps."""
        replicas.shared(self.model_dump(mode="json"))

    def steps(
        self, folder: Path, batches: PairBatches | None, replicas: Replicas
    ) -> tuple[TrainableModel, PairSteps]:
        """Return the model that is trained, and the steps of its training.

        Args:
            folder: of the base.
            batches: of the pairs; None in a process that follows.
            replicas: processes of the training.

        """
        model = trainable(folder, self.base)
        return model, PairSteps(
            model, batches, replicas, distance=self.distance, scale=self.scale, dtype=self.dtype
        )


def follow(store: Store, replicas: Replicas, is_stopped: Callable[[], bool]) -> None:
    """Compute a share of the steps of another process, the leader, until its training ends or is stopped.

    Args:
        store: of the models that encoders are trained from.
        replicas: processes of the training, of which this one does not lead.
        is_stopped: whether all are to end, asked after each step.

    Raises:
        ReplicaLostError: another process ended.
        CollectionError: this process finds another model than the leader.
        EmbedError: a model cannot be loaded.

    """
    announced: Any
    while (announced := replicas.shared()) is not None:
        fit = EncoderFit.model_validate(announced)
        planned = PlannedEncoder(fit.base, store.uri)
        if planned.fingerprint.digest != fit.base_digest:
            # With another tokenizer each process would compute shares of another batch.
            raise CollectionError(
                f"process {replicas.rank} finds another model {fit.base.model} than the first process; all need equal "
                "files, which a model in the store has: `scannery model add`",
                field="encoder",
            )
        with planned.folder() as folder:
            model, steps = fit.steps(folder, None, replicas)
            try:
                run_steps(
                    model.modules, steps.loss, fit.run, Checkpoints([], "", keep=1), replicas,
                    progress=lambda done, total: None, is_stopped=is_stopped, device=model.device,
                )  # fmt: skip
            except StoppedError:  # the leader tells of it
                return
