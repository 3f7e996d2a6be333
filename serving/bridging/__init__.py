"""The door of a server: what a bridge, an API of somebody else on this server, implements and may use.

A bridge imports this module, `scannery.runtime.errors` and the messages of `scannery.v1` (docs/bridges.md). A server
finds bridges by the entry points `scannery.bridges`; nothing else in this room knows one.
"""

from scannery.runtime.retry import Deadline
from scannery.serving import limits
from scannery.serving.bridging.api import (
    Bridge,
    Companion,
    HttpApi,
    HttpCall,
    HttpHead,
    Plugin,
    RefusedError,
)
from scannery.serving.bridging.engine import Engine
from scannery.serving.bridging.host import Host, Inside
from scannery.serving.request.phrases import without_quotes
from scannery.serving.request.query import check_count, check_text
from scannery.serving.scheduling.permits import waiting
from scannery.serving.security.principal import (
    BRIDGED,
    CURRENT,
    Principal,
    Scope,
    check_method,
    current_access,
    current_principal,
)
from scannery.serving.services.registry import UnaryMethod
from scannery.serving.status import status_for_callers

__all__ = [
    "BRIDGED",
    "CURRENT",
    "Bridge",
    "Companion",
    "Deadline",
    "Engine",
    "Host",
    "HttpApi",
    "HttpCall",
    "HttpHead",
    "Inside",
    "Plugin",
    "Principal",
    "RefusedError",
    "Scope",
    "UnaryMethod",
    "check_count",
    "check_method",
    "check_text",
    "current_access",
    "current_principal",
    "limits",
    "status_for_callers",
    "waiting",
    "without_quotes",
]
