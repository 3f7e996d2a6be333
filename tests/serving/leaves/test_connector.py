"""Connections to leaves with TLS, certificates and keys, as they are wrong, and as they are replaced."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scannery.runtime.errors import ConfigError
from scannery.serving.config import LeavesConfig
from scannery.serving.leaves.groups import LeafGroups
from tests.cluster.processes import wait_until
from tests.cluster.servers import leaf_server
from tests.served import make_library_store, serving
from tests.serving.security.test_tls import Authority, secure
from tests.tools.ports import free_ports


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_library_store(tmp_path_factory.mktemp("tls"))


@contextmanager
def connected(target: str, **config: Any) -> Iterator[LeafGroups]:
    groups = LeafGroups(LeavesConfig(target=target, **config))
    try:
        groups.start(0.5)
        yield groups
    finally:
        groups.close()


def check_told(target: str, words: str, **config: Any) -> None:
    """Fail unless a root does not reach a leaf, and says why in words of ours."""
    with connected(target, **config) as groups:
        wait_until(lambda: any(words in problem for problem in groups.problems), 20)
        assert not groups.ready


@pytest.mark.system
def test_what_is_wrong_with_a_connection_is_told(store: Path, tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    [port] = free_ports(1)
    place = f"localhost:{port}"

    def served(certificate: tuple[Path, Path]) -> Any:
        return leaf_server(store, 0, 1, listen=place, security=secure(*certificate))

    with served(authority.issue("leaf")):
        check_told(place, "is not of an authority", ca=str(other.path))
        check_told(f"127.0.0.1:{port}", "has another name", ca=str(authority.path))
        check_told(place, "it may speak TLS (--leaves-ca)")
    with served(authority.issue("old", days=-1)):
        check_told(place, "has expired", ca=str(authority.path))
    with leaf_server(store, 0, 1) as plain:
        check_told(plain.address, "does not speak TLS", ca=str(authority.path))
    with serving(store) as server:
        check_told(server.address, "it is no leaf")


@pytest.mark.system
def test_authorities_and_certificates_may_be_replaced(store: Path, tmp_path: Path) -> None:
    """The leaf gets a certificate of another authority, and asks for one of it: the root needs no restart."""
    [port] = free_ports(1)
    place, authorities = f"localhost:{port}", [Authority(tmp_path), Authority(tmp_path, "next")]
    files = {name: str(tmp_path / name) for name in ("ca", "cert", "cert_key")}

    def give(authority: Authority, number: int) -> None:
        cert, key = authority.issue(f"root{number}")
        for name, source in (("ca", authority.path), ("cert", cert), ("cert_key", key)):
            shutil.copy(source, files[name])

    def served(number: int) -> Any:
        own = authorities[number]
        security = secure(*own.issue(f"leaf{number}"), client_ca=str(own.path))
        return leaf_server(store, 0, 1, listen=place, security=security)

    give(authorities[0], 0)

    def is_over_http() -> bool:
        return all(leaf.over_http for leaf in groups.statuses())

    with connected(place, **files) as groups:
        with served(0):
            wait_until(lambda: groups.ready, 20)
            wait_until(is_over_http, 20)
        with served(1):
            wait_until(lambda: any("not of an authority" in problem for problem in groups.problems), 20)
            assert not groups.ready
            give(authorities[1], 1)
            wait_until(lambda: groups.ready, 20)
            wait_until(is_over_http, 20)
    with served(1):
        check_told(place, "--leaves-cert", ca=files["ca"])


@pytest.mark.parametrize("content", [b"", b"two\nlines", b"\xff\xfe", "\u00e4".encode()])
def test_a_file_without_a_key_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"leaves_key: .*{file}"):
        LeafGroups(LeavesConfig(target="127.0.0.1:1", key_file=str(file))).start(0)


def test_files_without_certificates_are_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    (cert, key), (_, stranger) = authority.issue("root"), authority.issue("other")
    for field, config in (
        ("leaves_ca", {"ca": key}),
        ("leaves_cert", {"cert": key, "cert_key": key}),
        ("leaves_cert_key", {"cert": cert, "cert_key": stranger}),
    ):
        files = {name: str(path) for name, path in config.items()}
        with pytest.raises(ConfigError) as caught:
            LeafGroups(LeavesConfig(target="127.0.0.1:1", **files)).start(0)
        assert caught.value.field == field
    with pytest.raises(ConfigError, match="both"):
        LeavesConfig(target="127.0.0.1:1", cert=str(cert))
