"""`scannery keys`, and a server that requires them, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scannery.cli.main import main
from scannery.serving import SecurityConfig
from tests.served import DIMENSIONS, serving


def test_a_key_from_its_making_to_its_end(
    tmp_path: Path, library: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(tmp_path / "keys.json")
    assert main(["keys", "create", "web", "--file", file, "--index", "library", "--days", "2"]) == 0
    output = capsys.readouterr()
    key = output.out.strip()
    assert key.startswith("scn_")
    assert "not shown again" in output.err
    assert main(["keys", "list", "--file", file, "--json"]) == 0
    [listed] = json.loads(capsys.readouterr().out)
    assert (listed["name"], listed["scopes"], listed["indexes"]) == ("web", ["read"], ["library"])
    assert "sha256" not in listed
    assert main(["keys", "list", "--file", file]) == 0
    assert listed["id"] in capsys.readouterr().out
    question = ["search", "--index", "library", "--vector", json.dumps([1.0] * DIMENSIONS), "--json"]
    with serving(library, security=SecurityConfig(keys_file=file)) as server:
        assert main([*question, "--target", server.address]) == 6
        assert "valid credentials are needed" in capsys.readouterr().err
        monkeypatch.setenv("SCANNERY_API_KEY", key)
        assert main([*question, "--target", server.address]) == 0
        assert len(json.loads(capsys.readouterr().out)["hits"]) == 10
    assert main(["keys", "revoke", listed["id"], "--file", file]) == 0
    assert json.loads(Path(file).read_text()) == {"keys": []}
    assert main(["keys", "revoke", listed["id"], "--file", file]) == 2


@pytest.mark.parametrize(
    "arguments",
    [["x", "--scope", "root"], ["x", "--index", "../up"], ["", "--scope", "read"], ["x", "--days", "-1"]],
)
def test_keys_that_make_no_sense_are_refused(
    tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "create", *arguments, "--file", str(tmp_path / "keys.json")]) == 2
    assert not (tmp_path / "keys.json").exists()
