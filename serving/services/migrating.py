"""The handlers that change the encoder or the passages of an index while it is served."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

from scannery.indexer import IndexSpec, InvalidSpecError, VectorsInfo, read_manifest
from scannery.live.maintenance.goals import Goal, goal_of, is_reached, progress_of, set_goal
from scannery.live.migration.errors import not_exchanged
from scannery.live.migration.mirrors import mirror_of
from scannery.runtime.errors import InvalidRequestError
from scannery.runtime.mirror_names import mirror_name
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.contract import GET_MIGRATION, MIGRATE_INDEX
from scannery.serving.services.creation import (
    VectorSpaces,
    check_may_create,
    check_no_path,
    check_room,
    invalid_spec,
    parsed_changes,
)
from scannery.serving.services.registry import UnaryMethod
from scannery.v1 import index_pb2 as pb

__all__ = ["Migrations"]

_GOALS = {
    pb.MIGRATION_GOAL_UNSPECIFIED: Goal.SWITCH,
    pb.MIGRATION_GOAL_SWITCH: Goal.SWITCH,
    pb.MIGRATION_GOAL_MIRROR: Goal.MIRROR,
    pb.MIGRATION_GOAL_UNDO: Goal.UNDO,
    pb.MIGRATION_GOAL_ABANDON: Goal.ABANDON,
}
_MESSAGES = {goal: message for message, goal in _GOALS.items()}


class Migrations:
    """MigrateIndex and GetMigration over one catalog, whose maintenance does the work; safe to use from threads."""

    def __init__(self, catalog: Catalog, models: Collection[str] | None) -> None:
        """Migrate indexes in the store of a catalog.

        Args:
            catalog: the indexes.
            models: as of `AllowedModels`.

        """
        self._catalog = catalog
        self._spaces = VectorSpaces(catalog, models)
        self.methods = {
            MIGRATE_INDEX: UnaryMethod(pb.MigrateIndexRequest, self.migrate, "admin"),
            GET_MIGRATION: UnaryMethod(pb.GetMigrationRequest, self.get, "admin"),
        }

    def migrate(self, request: pb.MigrateIndexRequest, deadline: Deadline) -> pb.MigrateIndexResponse:
        """Begin a migration, or give one another goal; each process looks for goals every two seconds."""
        store, index = self._catalog.store, request.index
        goal = _GOALS.get(request.goal)
        if goal is None:
            raise InvalidRequestError.at("goal", f"must be a MigrationGoal, got {request.goal}")
        live = self._catalog.live(index)  # which the caller must be allowed to see
        mirror = mirror_name(index)
        if request.changes_json:
            if goal not in (Goal.SWITCH, Goal.MIRROR):
                raise InvalidRequestError.at("changes_json", "must not be given with this goal")
            live.check_changeable()
            check_may_create(self._catalog, mirror, "index")
            changes = parsed_changes(request.changes_json)
            check_room(self._catalog)
            deadline.check()
            try:
                self._catalog.begin_migration(index, changes, partial(self._vectors_of, index))
            except InvalidSpecError as error:
                raise invalid_spec(error, "changes") from error
        followed = mirror_of(store, index).mirror
        assert followed is not None
        if goal is Goal.UNDO and not followed.former and goal_of(store, mirror) is not goal:
            raise not_exchanged(index, "goal")
        set_goal(store, mirror, goal)
        self._catalog.note_goal(mirror)
        return pb.MigrateIndexResponse(migration=self._migration(index))

    def get(self, request: pb.GetMigrationRequest, deadline: Deadline) -> pb.GetMigrationResponse:
        """Describe a migration as the store has it."""
        deadline.check()
        self._catalog.live(request.index)
        self._catalog.note_goal(mirror_name(request.index))
        return pb.GetMigrationResponse(migration=self._migration(request.index))

    def _vectors_of(self, index: str, spec: IndexSpec) -> Mapping[str, VectorsInfo]:
        check_no_path(spec, "changes")
        unnamed = VectorsInfo(dimensions=self._catalog.manifest(index).dimensions)
        if spec.encoder is not None:
            unnamed = self._spaces.of_encoder(spec.encoder, "changes.encoder")
        return {"": unnamed, **self._spaces.of_names(spec, spec.named_vectors.keys(), "changes")}

    def _migration(self, index: str) -> pb.Migration:
        store = self._catalog.store
        source, mirror = read_manifest(store, index), mirror_of(store, index)
        followed, goal, report = mirror.mirror, goal_of(store, mirror.index), progress_of(store, mirror.index)
        assert followed is not None
        return pb.Migration(
            index=index,
            version=source.version,
            model=source.spec.encoder.model if source.spec.encoder else "",
            dimensions=source.dimensions,
            mirror=mirror.index,
            mirror_model=mirror.spec.encoder.model if mirror.spec.encoder else "",
            mirror_dimensions=mirror.dimensions,
            goal=pb.MIGRATION_GOAL_UNSPECIFIED if goal is None else _MESSAGES[goal],
            filled=followed.filled,
            exchanged=followed.former,
            reached=goal is not None and is_reached(goal, mirror),
            converted=report.to_convert if followed.filled else report.converted,
            to_convert=report.to_convert,
            rows_per_second=0.0 if followed.filled else report.rows_per_s,
            seconds_left=None if followed.filled else report.seconds_left,
            error=report.error,
        )
