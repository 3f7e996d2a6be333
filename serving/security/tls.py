"""TLS and mTLS, with certificates that may be renewed while the server runs.

A certificate for this machine's own names, signed by an authority that is made for it.

For clients that insist on TLS while one develops. The authority's key is not kept, so that the file can sign nothing
else.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import secrets
import socket
import ssl
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from scannery.runtime.errors import ConfigError
from scannery.serving.security.config import SecurityConfig
from scannery.serving.security.private_files import Watched, read_private

__all__ = ["NAMES", "Certificates", "TlsSockets", "made_certificate", "read_authorities", "read_pair"]


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
        self._files = Watched("certificate", _files(config), self._read, every_s=0)

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


NAMES = ("localhost", "vectorsearch.localhost")
"""The second one is what a client with the universe domain `localhost` connects to; gRPC accepts no `*.localhost`."""
ADDRESSES = ("127.0.0.1", "::1")
VALID_DAYS = 365
RENEWED_DAYS = 7
"""A certificate that expires within this time is replaced."""


def made_certificate(folder: str | Path, *, now: dt.datetime | None = None) -> tuple[Path, Path]:
    """Return the paths of certificate and key in a folder, which are made if they are absent or expire soon.

    Clients trust `ca.pem`, which is made with them.

    Args:
        folder: is created if it is absent.
        now: the time; None: the present.

    Raises:
        ConfigError: the folder cannot be written.

    """
    root, now = Path(folder), now or dt.datetime.now(dt.timezone.utc)
    paths = root / "cert.pem", root / "key.pem"
    try:
        if not _is_good(root, now):
            root.mkdir(0o755, parents=True, exist_ok=True)
            _make(root, now)
    except OSError as error:
        raise ConfigError(f"tls_dev: cannot write {folder}: {error.strerror}", field="tls_dev") from error
    return paths


def _is_good(root: Path, now: dt.datetime) -> bool:
    if not all((root / name).is_file() for name in ("ca.pem", "cert.pem", "key.pem")):
        return False
    try:
        certificate = x509.load_pem_x509_certificate((root / "cert.pem").read_bytes())
    except ValueError:
        return False
    return certificate.not_valid_after_utc - now > dt.timedelta(days=RENEWED_DAYS)


def _make(root: Path, now: dt.datetime) -> None:
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _authority(authority_key, now)
    certificate = _certificate(authority, authority_key, key, now)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _write(root / "key.pem", private, 0o600)
    _write(root / "cert.pem", certificate.public_bytes(Encoding.PEM), 0o644)
    _write(root / "ca.pem", authority.public_bytes(Encoding.PEM), 0o644)


def _write(path: Path, data: bytes, mode: int) -> None:
    # A new file always: who could open one that is there already would read the key.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    draft.replace(path)


def _authority(key: ec.EllipticCurvePrivateKey, now: dt.datetime) -> x509.Certificate:
    name = _name("Scannery development authority")
    return (
        _builder(name, name, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )


def _certificate(
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePrivateKey,
    now: dt.datetime,
) -> x509.Certificate:
    names = [
        *map(x509.DNSName, NAMES),
        *(x509.IPAddress(ipaddress.ip_address(address)) for address in ADDRESSES),
    ]
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return (
        _builder(_name("localhost"), authority.subject, key.public_key(), now)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(signer, critical=False)
        .add_extension(_usage(signs=False), critical=True)
        .sign(authority_key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: dt.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + dt.timedelta(days=VALID_DAYS))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
