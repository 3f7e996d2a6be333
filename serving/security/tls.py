"""TLS and mTLS, with certificates that may be renewed while the server runs."""

from __future__ import annotations

import socket
import ssl

import grpc

from scannery.serving.errors import ConfigError
from scannery.serving.security.config import SecurityConfig
from scannery.serving.security.files import Watched
from scannery.serving.security.private_files import read_private

__all__ = ["Certificates", "TlsSockets"]


class Certificates:
    """The certificates of a gRPC port; the files are looked at before each handshake."""

    def __init__(self, config: SecurityConfig) -> None:
        """Read the files.

        Raises:
            ConfigError: they do not hold a certificate and its key.

        """
        self._config = config
        self._files = Watched("certificate", _files(config), self._read, every_s=0)

    @property
    def credentials(self) -> grpc.ServerCredentials:
        """What a server is started with."""
        return grpc.dynamic_ssl_server_credentials(
            self._files.value,
            self._fetch,  # type: ignore[arg-type]  # None means "no change", which the stubs do not know
            require_client_authentication=bool(self._config.client_ca),
        )

    @property
    def stale_s(self) -> float:
        """Seconds for which the files could not be used; 0: they were read at the last look."""
        return self._files.stale_s

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the new certificates; None if they are the old ones, or not usable (yet)."""
        return self._files.value if self._files.look() else None

    def _read(self) -> grpc.ServerCertificateConfiguration:
        config = self._config
        chain, key = read_private(config.tls_cert, "tls_cert"), read_private(config.tls_key, "tls_key")
        _check_pair(chain, key)
        roots = _authorities(config.client_ca) if config.client_ca else None
        return grpc.ssl_server_certificate_configuration([(key, chain)], root_certificates=roots)


class TlsSockets:
    """Makes TLS sockets of those that were accepted, with the same files and rules as gRPC's."""

    def __init__(self, config: SecurityConfig) -> None:
        """Read the files; raises ConfigError as `Certificates` does."""
        self._config = config
        self._files = Watched("certificate", _files(config), self._read, every_s=0)

    @property
    def context(self) -> ssl.SSLContext:
        """What the next connection is to use: with the certificates that are there now."""
        self._files.look()
        return self._files.value

    def wrap(self, accepted: socket.socket) -> socket.socket:
        """Return a TLS socket, whose handshake is still to be done; raises OSError."""
        return self.context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)

    def _read(self) -> ssl.SSLContext:
        config = self._config
        _check_pair(read_private(config.tls_cert, "tls_cert"), read_private(config.tls_key, "tls_key"))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        try:
            context.load_cert_chain(config.tls_cert, config.tls_key)
            if config.client_ca:
                _authorities(config.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(config.client_ca)
        except OSError as error:  # SSLError among them
            raise ConfigError(f"tls_cert: cannot be used: {error}", field="tls_cert") from error
        return context


def _files(config: SecurityConfig) -> tuple[str, str, str]:
    return config.tls_cert, config.tls_key, config.client_ca


def _authorities(path: str) -> bytes:
    """Return a file with certificates of authorities.

    Raises:
        ConfigError: it has none: gRPC would say nothing, and fail each handshake.

    """
    from cryptography import x509

    roots = read_private(path, "client_ca")
    try:
        x509.load_pem_x509_certificates(roots)
    except ValueError as error:
        raise ConfigError(f"client_ca: no certificate in PEM: {error}", field="client_ca") from error
    return roots


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
