"""The certificate that `--tls-dev` makes: nobody else on the machine gets its key."""

from __future__ import annotations

import datetime as dt
import os
import stat
from pathlib import Path

from cryptography import x509

from scannery.serving.security.development_certificate import made_certificate


def test_the_key_is_for_its_owner(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        _, key = made_certificate(tmp_path / "made")
    finally:
        os.umask(before)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert not stat.S_IMODE((tmp_path / "made").stat().st_mode) & 0o022
    assert {path.name for path in (tmp_path / "made").iterdir()} == {"ca.pem", "cert.pem", "key.pem"}


def test_a_file_that_another_user_holds_open_does_not_get_the_key(tmp_path: Path) -> None:
    drafts = [tmp_path / f".{name}.{os.getpid()}" for name in ("key.pem", "cert.pem")]
    for draft in drafts:
        draft.touch(0o666)
    with drafts[0].open() as held:
        _, key = made_certificate(tmp_path)
        assert held.read() == ""
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_a_certificate_is_kept_until_it_expires_soon_or_is_damaged(tmp_path: Path) -> None:
    cert, key = made_certificate(tmp_path)
    first = cert.read_bytes(), key.read_bytes()
    made_certificate(tmp_path)
    assert (cert.read_bytes(), key.read_bytes()) == first
    made_certificate(tmp_path, now=dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=360))
    assert cert.read_bytes() != first[0]
    cert.write_text("damaged")
    made_certificate(tmp_path)
    x509.load_pem_x509_certificate(cert.read_bytes())
