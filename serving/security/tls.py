"""TLS and mTLS, with certificates that may be renewed while the server runs."""

from __future__ import annotations

import socket
import ssl

import grpc

from scannery.runtime.errors import ConfigError
from scannery.serving.security.config import SecurityConfig
from scannery.serving.security.private_files import WatchedValue, read_private

__all__ = ["Certificates", "TlsSockets", "read_authorities", "read_pair"]


class Certificates:
    """The certificates of a gRPC port; the files are checked for changes before each handshake."""

    def __init__(self, config: SecurityConfig) -> None:
        """Read the files.

        Args:
            config: with `tls_cert` and `tls_key` set.

        Raises:
            ConfigError: they do not hold a certificate and its key.

        """
        self._config = config
        self._files = WatchedValue("certificate", _files(config), self._read, every_s=0)

    @property
    def credentials(self) -> grpc.ServerCredentials:
        """Credentials for `grpc.Server.add_secure_port`."""
        return grpc.dynamic_ssl_server_credentials(
            self._files.value,
            self._fetch,  # type: ignore[arg-type]  # None means "no change", which the stubs lack
            require_client_authentication=bool(self._config.client_ca),
        )

    @property
    def stale_s(self) -> float:
        """Seconds for which the files could not be used; 0 if the last check succeeded."""
        return self._files.stale_s

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the certificates if the files changed and are usable, else None."""
        return self._files.value if self._files.look() else None

    def _read(self) -> grpc.ServerCertificateConfiguration:
        chain, key = read_pair(self._config.tls_cert, self._config.tls_key)
        roots = read_authorities(self._config.client_ca, "client_ca") if self._config.client_ca else None
        return grpc.ssl_server_certificate_configuration([(key, chain)], root_certificates=roots)


class TlsSockets:
    """Wraps accepted sockets in TLS, with the same files and rules as the gRPC port."""

    def __init__(self, config: SecurityConfig) -> None:
        """Read the files; arguments and errors as for `Certificates`."""
        self._config = config
        self._files = WatchedValue("certificate", _files(config), self._read, every_s=0)

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
        read_pair(config.tls_cert, config.tls_key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        try:
            context.load_cert_chain(config.tls_cert, config.tls_key)
            if config.client_ca:
                read_authorities(config.client_ca, "client_ca")
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(config.client_ca)
        except OSError as error:  # SSLError is an OSError
            raise ConfigError(f"tls_cert: cannot be used: {error}", field="tls_cert") from error
        return context


def _files(config: SecurityConfig) -> tuple[str, str, str]:
    return config.tls_cert, config.tls_key, config.client_ca


def read_authorities(path: str, field: str) -> bytes:
    """Return a file with certificates of authorities, PEM; `field` is the option that names it.

    Raises:
        ConfigError: it has none; gRPC would report nothing, and fail each handshake.

    """
    from cryptography import x509

    roots = read_private(path, field)
    try:
        x509.load_pem_x509_certificates(roots)
    except ValueError as error:
        raise ConfigError(f"{field}: no certificate in PEM in {path}: {error}", field=field) from error
    return roots


def read_pair(cert: str, key: str, of_cert: str = "tls_cert", of_key: str = "tls_key") -> tuple[bytes, bytes]:
    """Return certificate chain and private key, PEM.

    A renewal replaces two files one after the other, so they may not match for a moment.

    Args:
        cert: file with the chain.
        key: file with the key.
        of_cert: the option that names the first file, for errors.
        of_key: that of the second one.

    Raises:
        ConfigError: they do not match; gRPC would report nothing, and fail each handshake.

    """
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    chain, private_pem = read_private(cert, of_cert), read_private(key, of_key)
    try:
        certificate = x509.load_pem_x509_certificates(chain)[0]
        private = load_pem_private_key(private_pem, None)
    except (ValueError, TypeError, IndexError) as error:
        raise ConfigError(f"{of_cert}: no certificate and key in PEM: {error}", field=of_cert) from error
    if certificate.public_key() != private.public_key():
        raise ConfigError(f"{of_key}: is not the key of the certificate in {of_cert}", field=of_key)
    return chain, private_pem
