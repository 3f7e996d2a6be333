"""The committed code is what the protos generate."""

from pathlib import Path

import pytest

from tests.tools.generate_protos import COMMENTS, FOREIGN_PACKAGES, PACKAGE, ROOT, generate

pytestmark = pytest.mark.system


def test_committed_code_is_what_the_protos_generate(tmp_path: Path) -> None:
    generated = {path.relative_to(tmp_path): path.read_bytes() for path in generate(tmp_path)}
    source = ROOT / "src"
    committed = {
        path.relative_to(source): path.read_bytes()
        for package in (PACKAGE, *FOREIGN_PACKAGES)
        for path in (source / package).glob("*_pb2*.py*")
    }
    assert sorted(committed) == sorted(generated), "run `make proto`"
    differing = [name for name, content in generated.items() if committed[name] != content]
    assert differing == [], "run `make proto`"
    assert (tmp_path / COMMENTS).read_bytes() == (source / COMMENTS).read_bytes(), "run `make proto`"


def test_proto_folder_is_no_python_package() -> None:
    assert not list((ROOT / "proto").rglob("__init__.py")), "`proto` is the import name of proto-plus"
