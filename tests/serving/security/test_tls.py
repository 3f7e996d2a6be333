"""Certificates: of the server, of callers, and renewed ones, with real handshakes."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import scannery
from scannery.serving import ConfigError, SecurityConfig, Server
from scannery.serving.security import KeyFile
from scannery.serving.security.authentication import Certificates
from tests.served import DIMENSIONS, serving

VECTOR = np.random.default_rng(0).normal(size=DIMENSIONS).astype(np.float32)


class Authority:
    """Signs certificates."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.path = folder / f"{name}.pem"
        certificate = self._signed(self.name, self.key.public_key(), ca=True)
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, days: int = 1) -> tuple[Path, Path]:
        """Return the files with a certificate for localhost, valid for some days from now, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        cert_path, key_path = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        certificate = self._signed(subject, key.public_key(), ca=False, days=days)
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        cert_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return cert_path, key_path

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, ca: bool, days: int = 1
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.timezone.utc)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=3))
            .not_valid_after(now + dt.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
            .sign(self.key, hashes.SHA256())
        )


def secure(cert: Path, key: Path, **options: Any) -> SecurityConfig:
    return SecurityConfig(tls_cert=str(cert), tls_key=str(key), **options)


def local(server: Server) -> str:
    return f"localhost:{server.address.rsplit(':', 1)[1]}"


@pytest.mark.system
def test_tls_shows_who_the_server_is(tmp_path: Path, library: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    with serving(library, security=secure(*authority.issue("server"))) as server:
        with scannery.connect(local(server), ca=authority.path) as client:
            assert len(client.indexes()) == 2
        wrong: list[Any] = [{"ca": other.path}, {"tls": False}, {"tls": True}]
        for options in wrong:
            with (
                scannery.connect(local(server), **options) as client,
                pytest.raises(scannery.UnavailableError),
            ):
                client.indexes()


async def test_the_async_client_speaks_tls_and_shows_keys(tmp_path: Path, library: Path) -> None:
    authority, keys = Authority(tmp_path), KeyFile(tmp_path / "keys.json")
    _, text = keys.create("a")
    security = secure(*authority.issue("server"), keys_file=str(keys.path))
    with serving(library, security=security) as server:
        async with scannery.aio.connect(local(server), ca=authority.path, api_key=text) as client:
            assert len(await client.indexes()) == 2
        async with scannery.aio.connect(local(server), ca=authority.path) as client:
            with pytest.raises(scannery.UnauthenticatedError):
                await client.indexes()


@pytest.mark.system
def test_mtls_shows_who_the_caller_is(tmp_path: Path, library: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    security = secure(*authority.issue("server"), client_ca=str(authority.path))
    assert security.authenticates
    with serving(library, security=security) as server:
        cert, key = authority.issue("client")
        with scannery.connect(local(server), ca=authority.path, cert=cert, key=key) as client:
            assert len(client.indexes()) == 2
        cert, key = other.issue("stranger")
        strangers: list[Any] = [{"cert": cert, "key": key}, {}]
        for options in strangers:
            with (
                scannery.connect(local(server), ca=authority.path, **options) as client,
                pytest.raises(scannery.UnavailableError),
            ):
                client.indexes()


def test_renewed_certificates_are_used_without_a_restart(tmp_path: Path, library: Path) -> None:
    first, second = Authority(tmp_path), Authority(tmp_path, "second")
    cert, key = first.issue("server")
    with (
        serving(library, security=secure(cert, key)) as server,
        scannery.connect(local(server), ca=first.path) as client,
    ):
        assert len(client.indexes()) == 2
        fresh_cert, fresh_key = second.issue("fresh")
        # Between the two replacements they are no pair, and the old ones stay in force.
        fresh_key.replace(key)
        with scannery.connect(local(server), ca=first.path) as another:
            assert len(another.indexes()) == 2
        fresh_cert.replace(cert)
        with scannery.connect(local(server), ca=second.path) as another:
            assert len(another.indexes()) == 2
        assert len(client.indexes()) == 2  # connections stay


@pytest.mark.parametrize(
    "broken", [b"", b"nothing", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_authorities_that_cannot_be_read_leave_the_last_ones_in_force(
    broken: bytes, tmp_path: Path, library: Path
) -> None:
    authority = Authority(tmp_path)
    (cert, key), (own_cert, own_key) = authority.issue("server"), authority.issue("caller")
    security = secure(cert, key, client_ca=str(authority.path))
    with serving(library, security=security) as server:
        good = authority.path.read_bytes()
        trusted = tmp_path / "trusted.pem"
        trusted.write_bytes(good)
        authority.path.write_bytes(broken)
        for _ in range(2):
            with scannery.connect(
                local(server), tls=True, ca=str(trusted), cert=str(own_cert), key=str(own_key)
            ) as client:
                assert len(client.index("library").search(VECTOR)) == 10
    with pytest.raises(ConfigError, match="client_ca: no certificate"):
        Certificates(security)
