"""The options of a console."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from scannery.console.judgement_sets import JudgementSets
from scannery.runtime.asgi_server import ConnectionLimits

__all__ = ["ConsoleConfig"]


@dataclass(frozen=True, kw_only=True)
class ConsoleConfig:
    """Where the page is served, who may use it, and what callers may take."""

    title: str = ""
    """Name of the target, as the page shows it."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 0
    """Port to listen on; 0: a free one."""
    names: Sequence[str] = ()
    """Names, besides those of loopback and the address, by which browsers may call the console."""
    tls_cert: str = ""
    """File with the certificate, PEM; empty: no TLS."""
    tls_key: str = ""
    """File with its private key, PEM."""
    behind_tls: bool = False
    """Whether something in front ends TLS."""
    needs_session: bool = False
    """Whether a call needs a session: the console has credentials or a store, which not every user of the machine may
    use."""
    takes_keys: bool = True
    """Whether callers can begin a session with a key or token of their own, which the target checks."""
    secret: str = field(default="", repr=False)
    """Key or token of the console, which sessions of its printed code have; empty: none."""
    typed_searches: int = 1
    """Number of searches as one types that run at once, of all sessions; further ones wait."""
    judgements: JudgementSets
    """Judgement sets of this machine."""
    calls: int = 64
    """Number of calls that are answered at once; further ones wait."""
    limits: ConnectionLimits = field(default_factory=partial(ConnectionLimits, answer_s=320.0))
    """What a connection may take; an answer may take as long as a call (`gateway.calls.MAX_TIMEOUT_S`)."""

    @property
    def is_encrypted(self) -> bool:
        """Whether browsers reach the console by HTTPS."""
        return bool(self.tls_cert) or self.behind_tls
