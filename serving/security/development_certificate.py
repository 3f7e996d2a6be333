"""A certificate for this machine's own names, signed by an authority that is made for it.

For clients that insist on TLS while one develops. The authority's key is not kept, so that the file can sign nothing
else.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import secrets
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from scannery.runtime.errors import ConfigError

__all__ = ["NAMES", "made_certificate"]

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
