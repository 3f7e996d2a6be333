"""JSON Web Tokens: what a good one opens, and that no other does."""

from __future__ import annotations

import base64
import hmac
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

import scannery
from scannery.serving import ConfigError, SecurityConfig
from scannery.serving.security.authentication import Authenticator
from tests.served import DIMENSIONS, serving

VECTOR = np.random.default_rng(0).normal(size=DIMENSIONS).astype(np.float32)

ISSUER, AUDIENCE = "https://issuer.example", "scannery"


class Issuer:
    """Signs tokens, and publishes its keys."""

    def __init__(self, folder: Path) -> None:
        self.jwt = pytest.importorskip("jwt")
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.jwks = folder / "jwks.json"
        self.publish(self.key)

    def publish(self, key: ec.EllipticCurvePrivateKey) -> None:
        published = json.loads(self.jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
        self.jwks.write_text(json.dumps({"keys": [{**published, "kid": "k1", "alg": "ES256", "use": "sig"}]}))

    def token(self, **claims: Any) -> str:
        now = int(time.time())
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": now + 600, "scope": "read"} | claims
        claims = {name: value for name, value in claims.items() if value is not None}
        return str(self.jwt.encode(claims, self.key, algorithm="ES256", headers={"kid": "k1"}))

    @property
    def security(self) -> SecurityConfig:
        return SecurityConfig(jwks_file=str(self.jwks), jwt_issuer=ISSUER, jwt_audience=AUDIENCE)


@pytest.mark.system
def test_a_token_says_who_and_what(tmp_path: Path, library: Path) -> None:
    issuer = Issuer(tmp_path)
    with serving(library, security=issuer.security) as server:
        asked = []

        def token() -> str:
            asked.append(1)
            return issuer.token(scannery_indexes=["flat"])

        with scannery.connect(server.address, token=token) as client:
            assert [info.name for info in client.indexes()] == ["flat"]
            with pytest.raises(scannery.NotFoundError):
                client.index("library").stats()
            caller = client.whoami()
            assert caller.name.startswith("sub/")
            assert caller.indexes == ("flat",)
            assert caller.expires_at is not None
            assert caller.expires_at.timestamp() > time.time()
        assert len(asked) >= 2


def test_tokens_that_are_not_good_are_nobodys(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    now = [time.time()]
    authenticator = Authenticator(issuer.security, clock=lambda: now[0], ticks=lambda: now[0])

    def known(token: str) -> bool:
        return authenticator.principal((("authorization", f"Bearer {token}"),)) is not None

    good = issuer.token()
    assert known(good)
    assert known(good)
    past = int(time.time()) - 100
    for claims in (
        {"iss": "https://other"},
        {"aud": "other"},
        {"exp": past},
        {"exp": None},
        {"sub": None},
        {"iss": None},
        {"aud": None},
        {"nbf": int(time.time()) + 600},
        {"scope": 3},
        {"scannery_indexes": "library"},
    ):
        assert not known(issuer.token(**claims)), claims
    head, body, _ = good.split(".")
    other = Issuer(tmp_path / "..").token()
    issuer.publish(issuer.key)
    assert not known(".".join((head, body, other.split(".")[2])))
    assert not known(
        issuer.jwt.encode({"iss": ISSUER, "aud": AUDIENCE, "sub": "x", "exp": past * 2}, "", "none")
    )
    # The oldest trick: the public key as the secret of a symmetric signature.
    public = issuer.key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    forged = _signed_with_a_shared_secret({"alg": "HS256", "kid": "k1"}, body, public)
    assert not known(forged)
    # One that was good is not good for ever, though it is remembered.
    now[0] += 700
    assert not known(good)


def _signed_with_a_shared_secret(header: dict[str, str], body: str, secret: bytes) -> str:
    def text(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    signed = f"{text(json.dumps(header).encode())}.{body}"
    return f"{signed}.{text(hmac.new(secret, signed.encode(), 'sha256').digest())}"


def test_renewed_keys_of_the_issuer_are_read(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    now = [time.time()]
    authenticator = Authenticator(issuer.security, clock=lambda: now[0], ticks=lambda: now[0])
    issuer.key = ec.generate_private_key(ec.SECP256R1())
    token = (("authorization", f"Bearer {issuer.token()}"),)
    assert authenticator.principal(token) is None
    issuer.publish(issuer.key)
    now[0] += 2
    assert authenticator.principal(token) is not None


@pytest.mark.system
@pytest.mark.parametrize(
    ("claim", "visible"),
    [
        ({}, None),
        ({"scannery_indexes": "*"}, None),
        ({"scannery_indexes": ["flat"]}, {"flat"}),
        ({"scannery_indexes": []}, set()),
        ({"scannery_indexes": [3, None]}, set()),
        # What issuers send for an attribute without a value.
        ({"scannery_indexes": ...}, set()),
    ],
)
def test_only_an_absent_claim_or_a_star_opens_all_indexes(
    tmp_path: Path, claim: dict[str, Any], visible: set[str] | None
) -> None:
    issuer = Issuer(tmp_path)
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": time.time() + 600, "scope": "read"}
    claims |= {name: None if value is ... else value for name, value in claim.items()}
    token = issuer.jwt.encode(claims, issuer.key, algorithm="ES256", headers={"kid": "k1"})
    found = Authenticator(issuer.security).principal((("authorization", f"Bearer {token}"),))
    assert found is not None
    assert found.indexes == visible
    assert found.sees("library") == (visible is None)


@pytest.mark.system
@pytest.mark.parametrize(
    ("bits", "more", "good"),
    [
        (2048, {}, True),
        (2048, {"use": "sig", "key_ops": ["verify"]}, True),
        (1024, {}, False),
        (2048, {"use": "enc"}, False),
        (2048, {"key_ops": ["wrapKey"]}, False),
    ],
)
def test_weak_keys_and_those_for_encryption_sign_nothing(
    tmp_path: Path, bits: int, more: dict[str, Any], good: bool
) -> None:
    issuer = Issuer(tmp_path)
    issuer.publish(issuer.key)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the library, which warns of short keys
        key = rsa.generate_private_key(65537, bits)
        published = json.loads(issuer.jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
        [usual] = json.loads(issuer.jwks.read_text())["keys"]
        weak = {**{k: v for k, v in published.items() if k != "key_ops"}, "kid": "k2", "alg": "RS256", **more}
        issuer.jwks.write_text(json.dumps({"keys": [usual, weak]}))
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": time.time() + 600, "scope": "read"}
        token = issuer.jwt.encode(claims, key, algorithm="RS256", headers={"kid": "k2"})
        known = Authenticator(issuer.security).principal((("authorization", f"Bearer {token}"),))
        assert (known is not None) == good
        issuer.jwks.write_text(json.dumps({"keys": [weak]}))
        if not good:
            with pytest.raises(ConfigError, match="jwks_file"):
                Authenticator(issuer.security)


@pytest.mark.system
def test_an_end_with_hundreds_of_digits_is_one(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    authenticator = Authenticator(issuer.security)
    metadata = (("authorization", f"Bearer {issuer.token(exp=10**400)}"),)
    assert authenticator.principal(metadata) is not None


def test_callers_with_long_names_are_told_apart(tmp_path: Path) -> None:
    """What is kept for a caller, as the ids of their writes, is kept by the name."""
    issuer = Issuer(tmp_path)
    authenticator = Authenticator(issuer.security)
    principals = [
        authenticator.principal(
            (("authorization", f"Bearer {issuer.token(sub='https://' + 'x' * 80 + end)}"),)
        )
        for end in ("/ann", "/bob")
    ]
    names = {principal.name for principal in principals if principal is not None}
    assert len(names) == 2
    assert max(map(len, names)) <= 68
