"""`scannery encoder`: encode texts in a separate process, for servers and other callers."""

from __future__ import annotations

from typing import Any

from scannery.cli import options
from scannery.cli.declared_options import configured, with_options
from scannery.cli.lazy_commands import uncollected
from scannery.serving.config import EncoderConfig
from scannery.serving.security.config import SecurityConfig

__all__ = ["encoder"]


@with_options(
    "store index model listen workers device drain http metrics_listen cached_queries memory_budget bridges log_json "
    "keys jwks jwt_issuer jwt_audience tls_cert tls_key behind_tls client_ca public_health reflection insecure",
    EncoderConfig,
    SecurityConfig,
)
def encoder(
    workers: options.WorkersOption = "1", log_json: options.LogJsonOption = False, **settings: Any
) -> None:
    """Encode texts until SIGTERM or Ctrl-C, for `serve --encoder` and for callers of EmbeddingService."""
    with uncollected():
        from scannery.indexer.local.needless_imports import leave_needless_imports_out

        leave_needless_imports_out()
        from scannery.serving import serve_encoders

    options.become_server(log_json)
    config = configured(EncoderConfig, settings, security=configured(SecurityConfig, settings))
    serve_encoders(config, workers=options.worker_count(workers), ready=options.announce)
