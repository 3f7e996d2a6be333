"""Names of the services of the wire contract (proto/scannery/v1), and the paths of methods that are treated apart."""

from __future__ import annotations

__all__ = [
    "ALTER_INDEX",
    "BRANCH_INDEX",
    "CREATE_INDEX",
    "DELETE_ALIAS",
    "DROP_INDEX",
    "EMBED",
    "EMBEDDING_SERVICE",
    "FEEDBACK",
    "GET_METRICS",
    "GET_MIGRATION",
    "GET_VERSION",
    "HTTP_KEY",
    "INDEX_SERVICE",
    "KEPT_QUERIES",
    "LEAF_COUNT",
    "LEAF_FETCH",
    "LEAF_READ_ROWS",
    "LEAF_SCAN",
    "LEAF_SEARCH",
    "LEAF_SERVICE",
    "LEAF_STATISTICS",
    "LEAF_STATUS",
    "LIST_ALIASES",
    "LIST_ENCODERS",
    "LIST_VERSIONS",
    "MIGRATE_INDEX",
    "ROLLBACK_INDEX",
    "SEARCH_SERVICE",
    "SEARCH_STREAM",
    "SERVER_KEY",
    "SET_ALIAS",
    "UPSERT",
    "UPSERT_STREAM",
    "WHO_AM_I",
]

SEARCH_SERVICE = "scannery.v1.SearchService"
INDEX_SERVICE = "scannery.v1.IndexService"
EMBEDDING_SERVICE = "scannery.v1.EmbeddingService"
LEAF_SERVICE = "scannery.v1.LeafService"

FEEDBACK = f"/{SEARCH_SERVICE}/Feedback"
SEARCH_STREAM = f"/{SEARCH_SERVICE}/SearchStream"
UPSERT = f"/{INDEX_SERVICE}/Upsert"
UPSERT_STREAM = f"/{INDEX_SERVICE}/UpsertStream"
CREATE_INDEX = f"/{INDEX_SERVICE}/CreateIndex"
ALTER_INDEX = f"/{INDEX_SERVICE}/AlterIndex"
BRANCH_INDEX = f"/{INDEX_SERVICE}/BranchIndex"
MIGRATE_INDEX = f"/{INDEX_SERVICE}/MigrateIndex"
GET_MIGRATION = f"/{INDEX_SERVICE}/GetMigration"
LIST_VERSIONS = f"/{INDEX_SERVICE}/ListVersions"
GET_VERSION = f"/{INDEX_SERVICE}/GetVersion"
ROLLBACK_INDEX = f"/{INDEX_SERVICE}/RollbackIndex"
DROP_INDEX = f"/{INDEX_SERVICE}/DropIndex"
SET_ALIAS = f"/{INDEX_SERVICE}/SetAlias"
DELETE_ALIAS = f"/{INDEX_SERVICE}/DeleteAlias"
KEPT_QUERIES = f"/{INDEX_SERVICE}/GetKeptQueries"
LIST_ALIASES = f"/{INDEX_SERVICE}/ListAliases"
GET_METRICS = f"/{INDEX_SERVICE}/GetMetrics"
WHO_AM_I = f"/{INDEX_SERVICE}/WhoAmI"
EMBED = f"/{EMBEDDING_SERVICE}/Embed"
LIST_ENCODERS = f"/{EMBEDDING_SERVICE}/ListEncoders"
LEAF_COUNT = f"/{LEAF_SERVICE}/Count"
LEAF_FETCH = f"/{LEAF_SERVICE}/Fetch"
LEAF_READ_ROWS = f"/{LEAF_SERVICE}/ReadRows"
LEAF_SCAN = f"/{LEAF_SERVICE}/Scan"
LEAF_SEARCH = f"/{LEAF_SERVICE}/Search"
LEAF_STATISTICS = f"/{LEAF_SERVICE}/GetStatistics"
LEAF_STATUS = f"/{LEAF_SERVICE}/GetStatus"

HTTP_KEY, SERVER_KEY = "scannery-http", "scannery-server"
"""Keys of gRPC metadata: a call with the first gets the HTTP port under it, and the server's id under the second."""
