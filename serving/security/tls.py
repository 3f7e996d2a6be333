"""TLS and mTLS, with certificates that may be renewed while the server runs."""

from __future__ import annotations

import logging
import socket
import ssl
from pathlib import Path

import grpc

from scannery.serving.errors import ConfigError
from scannery.serving.security.config import SecurityConfig
from scannery.serving.security.files import Watched

__all__ = ["TlsSockets", "server_credentials"]

_LOG = logging.getLogger(__name__)


def server_credentials(config: SecurityConfig) -> grpc.ServerCredentials:
    """Return the credentials of the server; its files are read again before a handshake if they changed.

    Raises:
        ConfigError: the files do not hold a certificate and its key.

    """
    certificates = _Certificates(config)
    return grpc.dynamic_ssl_server_credentials(
        certificates.first,
        certificates.fetch,  # type: ignore[arg-type]  # None means "no change", which the stubs do not know
        require_client_authentication=bool(config.client_ca),
    )


class _Certificates:
    def __init__(self, config: SecurityConfig) -> None:
        self._config = config
        self._files = Watched((config.tls_cert, config.tls_key, config.client_ca))
        self.first = self._read()

    def fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the new certificates; None if they are the old ones, or not usable (yet)."""
        if not self._files.changed():
            return None
        try:
            fresh = self._read()
        except ConfigError as error:
            _LOG.error("the certificate stays as it was: %s", error)
            return None
        _LOG.info("certificate %s was read again", self._config.tls_cert)
        return fresh

    def _read(self) -> grpc.ServerCertificateConfiguration:
        config = self._config
        chain, key = _bytes(config.tls_cert, "tls_cert"), _bytes(config.tls_key, "tls_key")
        _check_pair(chain, key)
        roots = _bytes(config.client_ca, "client_ca") if config.client_ca else None
        return grpc.ssl_server_certificate_configuration([(key, chain)], root_certificates=roots)


class TlsSockets:
    """Makes TLS sockets of those that were accepted, with the same files and rules as gRPC's."""

    def __init__(self, config: SecurityConfig) -> None:
        """Read the files; raises ConfigError as `server_credentials` does."""
        self._config = config
        self._files = Watched((config.tls_cert, config.tls_key, config.client_ca))
        self._context = self._read()

    def wrap(self, accepted: socket.socket) -> socket.socket:
        """Return a TLS socket, whose handshake is still to be done; raises OSError."""
        if self._files.changed():
            try:
                self._context = self._read()
            except ConfigError as error:
                _LOG.error("the certificate stays as it was: %s", error)
        return self._context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)

    def _read(self) -> ssl.SSLContext:
        config = self._config
        _check_pair(_bytes(config.tls_cert, "tls_cert"), _bytes(config.tls_key, "tls_key"))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        try:
            context.load_cert_chain(config.tls_cert, config.tls_key)
            if config.client_ca:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(config.client_ca)
        except OSError as error:  # SSLError among them
            raise ConfigError(f"tls_cert: cannot be used: {error}", field="tls_cert") from error
        return context


def _bytes(path: str, field: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{field}: cannot read {path}: {error.strerror}", field=field) from error


def _check_pair(chain: bytes, key: bytes) -> None:
    """Raise ConfigError unless key and certificate are a pair: gRPC would say nothing, and fail each handshake.

    They are two files, so between the two replacements of a renewal they are no pair either.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        certificate = x509.load_pem_x509_certificates(chain)[0]
        private = load_pem_private_key(key, None)
    except (ValueError, TypeError, IndexError) as error:
        raise ConfigError(f"tls_cert: no certificate and key in PEM: {error}", field="tls_cert") from error
    if certificate.public_key() != private.public_key():
        raise ConfigError("tls_key: is not the key of the certificate in tls_cert", field="tls_key")
