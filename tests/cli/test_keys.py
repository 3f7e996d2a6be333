"""`scannery keys`, and a server that requires them, through the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scannery.cli.main import main
from scannery.serving import SecurityConfig
from tests.data import ROOT
from tests.served import DIMENSIONS, serving
from tests.serving.security.test_tls import Authority


@pytest.mark.system
def test_a_key_from_its_making_to_its_end(
    tmp_path: Path, library: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(tmp_path / "keys.json")
    limits = ["--limit", "strict", "--limit", "rows_per_s=1e6"]
    assert main(["keys", "create", "web", "--file", file, "--index", "library", "--days", "2", *limits]) == 0
    output = capsys.readouterr()
    key = output.out.strip()
    assert key.startswith("scn_")
    assert "not shown again" in output.err
    assert main(["keys", "list", "--file", file, "--json"]) == 0
    [listed] = json.loads(capsys.readouterr().out)
    assert (listed["name"], listed["scopes"], listed["indexes"]) == ("web", ["read"], ["library"])
    assert "sha256" not in listed
    assert (listed["limits"]["rows_per_s"], listed["limits"]["max_k"]) == (1e6, 100)
    assert main(["keys", "list", "--file", file]) == 0
    assert listed["id"] in (shown := capsys.readouterr().out)
    assert "limits" in shown
    question = ["search", "--index", "library", "--vector", json.dumps([1.0] * DIMENSIONS), "--json"]
    with serving(library, security=SecurityConfig(keys_file=file)) as server:
        assert main([*question, "--target", server.address]) == 6
        assert "valid credentials are needed" in capsys.readouterr().err
        monkeypatch.setenv("SCANNERY_API_KEY", key)
        assert main([*question, "--target", server.address]) == 0
        assert len(json.loads(capsys.readouterr().out)["hits"]) == 10
        assert main(["keys", "whoami", "--target", server.address, "--json"]) == 0
        caller = json.loads(capsys.readouterr().out)
        assert (caller["name"], caller["indexes"]) == (f"web/{listed['id']}", ["library"])
        assert (caller["expires_at"], caller["limits"]) == (listed["expires_at"], listed["limits"])
        assert main([*question, "--target", server.address, "-k", "101"]) == 6
        assert "max_k" in capsys.readouterr().err
        assert main(["keys", "whoami", "--target", server.address]) == 0
        assert listed["id"] in (shown := capsys.readouterr().out)
        assert "rows_per_s=1e+06" in shown
    assert main(["keys", "revoke", listed["id"], "--file", file]) == 0
    assert json.loads(Path(file).read_text()) == {"keys": []}
    assert main(["keys", "revoke", listed["id"], "--file", file]) == 2


def test_a_key_is_revoked_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "keys.json")
    for name in ("web", "indexer", "twice", "twice"):
        assert main(["keys", "create", name, "--file", file]) == 0
    capsys.readouterr()
    assert main(["keys", "revoke", "wbe", "--file", file]) == 2
    assert "there is no key 'wbe'" in (err := capsys.readouterr().err)
    assert "did you mean web?" in err
    assert main(["keys", "revoke", "web", "--file", file]) == 0
    assert "(web)" in capsys.readouterr().out
    kept = json.loads(Path(file).read_text())["keys"]
    assert [key["name"] for key in kept] == ["indexer", "twice", "twice"]
    assert main(["keys", "revoke", "twice", "--file", file]) == 2
    message = capsys.readouterr().err
    assert all(key["id"] in message for key in kept[1:])
    assert main(["keys", "revoke", kept[2]["id"], "--file", file]) == 0
    assert main(["keys", "revoke", "twice", "--file", file]) == 0
    assert [key["name"] for key in json.loads(Path(file).read_text())["keys"]] == ["indexer"]


@pytest.mark.parametrize(
    "arguments",
    [["x", "--scope", "root"], ["x", "--index", "../up"], ["", "--scope", "read"], ["x", "--days", "-1"]],
)
def test_keys_that_make_no_sense_are_refused(
    tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "create", *arguments, "--file", str(tmp_path / "keys.json")]) == 2
    assert not (tmp_path / "keys.json").exists()


@pytest.mark.system
def test_a_failed_handshake_prints_one_line(tmp_path: Path, library: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("server")
    question = ["search", "--index", "library", "--vector", json.dumps([1.0] * DIMENSIONS)]
    with serving(library, security=SecurityConfig(tls_cert=str(cert), tls_key=str(key))) as server:
        # A process of its own: gRPC reads how much to log when it is imported.
        done = subprocess.run(
            [
                sys.executable, "-m", "scannery.cli.main", *question, "--timeout", "2", "--target", server.address,
            ],
            capture_output=True,
            text=True,
            env={name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
            | {"PYTHONPATH": str(ROOT / "src"), "SCANNERY_TLS": "1"},
            check=False,
        )  # fmt: skip
    assert done.returncode == 4
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
