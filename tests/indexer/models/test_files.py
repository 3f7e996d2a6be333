"""Files of models: into the store by their hash, and from there into the cache, checked before anything reads them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from scannery.indexer import SegmentCache, Store, parse_spec
from scannery.indexer.errors import CorruptError, InvalidSpecError, NotFoundError
from scannery.indexer.manifest import VectorsInfo
from scannery.indexer.models.files import cached_model, write_model_files
from scannery.indexer.models.manifest import EncoderVersion, ModelFile, read_version
from scannery.indexer.models.references import located_model
from scannery.indexer.models.registry import ModelRegistry
from scannery.indexer.versions.creation import create_index
from tests.object_server import ObjectServer, object_server

WEIGHTS = bytes(range(256)) * 4096


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    for path, data in {
        "modules.json": b"[]",
        "vocab.txt": b"a\nb\n",
        "README.md": b"---\nlanguage: en\n---\n",
        "model.safetensors": WEIGHTS,
        "1_Pooling/config.json": b"{}",
        "2_Dense/model.safetensors": WEIGHTS[:512],
        "pytorch_model.bin": b"a pickle",
        ".cache/state.json": b"{}",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


STORED = [
    "1_Pooling/config.json",
    "2_Dense/model.safetensors",
    "README.md",
    "model.safetensors",
    "modules.json",
    "vocab.txt",
]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    with object_server(monkeypatch) as running:
        yield running


@pytest.fixture(params=["folder", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return Store.open(tmp_path / "store", create=True)
    request.getfixturevalue("server")
    return Store.open("s3://bucket/store")


@pytest.fixture
def local(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


@pytest.fixture
def cache(tmp_path: Path) -> SegmentCache:
    return SegmentCache(tmp_path / "cache")


def registered(store: Store, folder: Path, name: str = "podcasts", kind: Any = "encoder") -> EncoderVersion:
    files = write_model_files(store, name, folder)
    return ModelRegistry(store).register(
        name,
        lambda number: EncoderVersion(
            name=name, version=number, kind=kind, created_at=datetime.now(timezone.utc), files=files
        ),
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_model_comes_back_as_it_was(store: Store, cache: SegmentCache, folder: Path) -> None:
    version = registered(store, folder)
    assert version.spec_reference == "store:podcasts@1"
    assert sorted(version.files) == STORED
    assert version.weights_bytes == len(WEIGHTS) + 512
    assert ModelRegistry(store).read("podcasts") == version
    for path, file in version.files.items():
        assert file == ModelFile(
            sha256=hashlib.sha256((folder / path).read_bytes()).hexdigest(),
            size_bytes=(folder / path).stat().st_size,
        )
    with cached_model(store, version, cache) as cached:
        assert contents(cached) == {path: (folder / path).read_bytes() for path in STORED}


def test_a_cached_model_needs_no_store(store: Store, cache: SegmentCache, folder: Path) -> None:
    first, second = registered(store, folder), registered(store, folder, "copies")
    with cached_model(store, first, cache):
        pass
    for item in store.list("_models"):
        store.delete(item.key)
    with cached_model(store, second, cache) as cached:
        assert (cached / "model.safetensors").read_bytes() == WEIGHTS


def test_a_model_in_use_stays_in_a_full_cache(local: Store, folder: Path, tmp_path: Path) -> None:
    first = registered(local, folder)
    (folder / "vocab.txt").write_bytes(b"c\n")
    second = registered(local, folder)
    full = SegmentCache(tmp_path / "cache", max_bytes=1)
    with cached_model(local, first, full) as in_use:
        with cached_model(local, second, full) as cached:
            assert cached != in_use
        assert (in_use / "vocab.txt").read_bytes() == b"a\nb\n"
    with cached_model(local, second, full):
        pass
    (folder / "vocab.txt").write_bytes(b"d\n")
    with cached_model(local, registered(local, folder), full):
        assert not in_use.exists(), "nobody loads it any more"


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_a_damaged_cache_is_repaired(store: Store, cache: SegmentCache, folder: Path, damage: str) -> None:
    version = registered(store, folder)
    with cached_model(store, version, cache) as cached:
        path = cached / "model.safetensors"
    if damage == "flipped":
        path.write_bytes(b"x" + WEIGHTS[1:])
    else:
        path.unlink()
    with cached_model(store, version, cache) as cached:
        assert (cached / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize("damage", ["flipped", "shorter", "missing"])
def test_a_damaged_store_is_named(store: Store, cache: SegmentCache, folder: Path, damage: str) -> None:
    version = registered(store, folder)
    key = version.file_key("model.safetensors")
    if damage == "missing":
        store.delete(key)
    else:
        store.write(key, b"x" + WEIGHTS[1:] if damage == "flipped" else WEIGHTS[:-1])
    with pytest.raises(CorruptError, match=key), cached_model(store, version, cache):
        pass
    assert not [path for path in cache.folder.rglob("*") if path.is_file()]
    assert registered(store, folder).reference == "podcasts@2"
    with cached_model(store, version, cache) as cached:
        assert (cached / "model.safetensors").read_bytes() == WEIGHTS, "the next registration repairs it"


def test_only_files_of_the_folder_are_stored(local: Store, folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("password")
    (folder / "vocab.txt").unlink()
    (folder / "vocab.txt").symlink_to(secret)
    with pytest.raises(InvalidSpecError, match=r"vocab\.txt is no file, or a link that leads out"):
        write_model_files(local, "podcasts", folder)
    (folder / "vocab.txt").unlink()
    os.mkfifo(folder / "vocab.txt")
    with pytest.raises(InvalidSpecError, match="is no file"):
        write_model_files(local, "podcasts", folder)
    (folder / "vocab.txt").unlink()
    for path in ("model.safetensors", "2_Dense/model.safetensors"):
        (folder / path).unlink()
    with pytest.raises(InvalidSpecError, match="has no weights"):
        write_model_files(local, "podcasts", folder)
    assert local.list() == []


def test_a_snapshot_of_the_hub_has_links_to_its_files(local: Store, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots" / "main"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (blobs / "1234").write_bytes(WEIGHTS)
    (snapshot / "model.safetensors").symlink_to("../../blobs/1234")
    assert write_model_files(local, "podcasts", snapshot)["model.safetensors"].size_bytes == len(WEIGHTS)


def test_the_number_of_files_is_limited(local: Store, folder: Path) -> None:
    for number in range(200):
        (folder / f"{number}.json").write_text("{}")
    with pytest.raises(InvalidSpecError, match="has 206 files with"):
        write_model_files(local, "podcasts", folder)


@pytest.mark.parametrize("path", ["../x.json", "/etc/x.json", "a//b.json", "a/./b.json", "a\\\\b.json", ""])
def test_paths_that_lead_out_of_the_folder_are_refused(local: Store, folder: Path, path: str) -> None:
    version = registered(local, folder)
    data = version.to_json().replace(b'"vocab.txt"', f'"{path}"'.encode())
    with pytest.raises(CorruptError, match="must be a path inside the folder|is damaged"):
        read_version("key", data)


def test_a_reference_is_resolved_in_the_store_of_the_index(local: Store, folder: Path) -> None:
    registered(local, folder)
    for model in ("store:podcasts", "store:podcasts@0", "store:Podcasts@1", "store:../x@1"):
        with (
            pytest.raises(InvalidSpecError, match="must be store:NAME@N with its version"),
            located_model(model, Path(), local.uri),
        ):
            pass
    with (
        pytest.raises(NotFoundError, match="no model podcasts@7"),
        located_model("store:podcasts@7", Path(), local.uri),
    ):
        pass
    with (
        pytest.raises(InvalidSpecError, match="none is named"),
        located_model("store:podcasts@1", Path(), None),
    ):
        pass
    with located_model("store:podcasts@1", Path(), local.uri) as path:
        assert (Path(path) / "model.safetensors").read_bytes() == WEIGHTS


FETCH = """
import sys
from scannery.indexer import Store
from scannery.indexer.models.references import located_model
from pathlib import Path
print("begins", flush=True)
with located_model("store:podcasts@1", Path(), sys.argv[1]) as path:
    print(len((Path(path) / "model.safetensors").read_bytes()))
"""
WRITE = """
import sys
from pathlib import Path
from scannery.indexer import Store
from scannery.indexer.models.files import write_model_files
print("begins", flush=True)
while True:
    write_model_files(Store.open(sys.argv[1]), "podcasts", Path(sys.argv[2]))
"""


def process(code: str, *arguments: str, cache: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"SCANNERY_CACHE_DIR": str(cache)}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, env=environment
    )


def kill(running: subprocess.Popen[str]) -> None:
    running.send_signal(signal.SIGKILL)
    running.communicate()


@pytest.mark.system
def test_processes_that_fetch_at_once_fetch_once(server: ObjectServer, folder: Path, tmp_path: Path) -> None:
    store = Store.open("s3://bucket/store")
    key = registered(store, folder).file_key("model.safetensors")
    server.requests.clear()
    server.first_byte_s = 0.3
    running = [process(FETCH, store.uri, cache=tmp_path / "cache") for _ in range(2)]
    outputs = [each.communicate(timeout=60)[0].split() for each in running]
    assert outputs == [["begins", str(len(WEIGHTS))]] * 2
    fetched = [
        path for method, path, size in server.requests if method == "GET" and path.endswith(key) and size
    ]
    assert len(fetched) == 1


@pytest.mark.system
def test_a_killed_fetch_leaves_nothing_that_is_used(
    server: ObjectServer, folder: Path, tmp_path: Path
) -> None:
    store = Store.open("s3://bucket/store")
    version = registered(store, folder)
    server.bytes_per_s = 1 << 19
    running = process(FETCH, store.uri, cache=tmp_path / "cache")
    drafts = tmp_path / "cache" / "segments"
    deadline = time.monotonic() + 60
    while not list(drafts.glob("*/draft-*/*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    kill(running)
    assert list(drafts.glob("*/draft-*"))
    assert not list(drafts.glob(f"*/{version.content_sha256}"))
    server.bytes_per_s = None
    with cached_model(store, version, SegmentCache(tmp_path / "cache")) as cached:
        assert sorted(contents(cached)) == STORED
    assert not list(drafts.glob("*/draft-*"))


@pytest.mark.system
def test_a_killed_registration_leaves_files_that_gc_removes(
    local: Store, folder: Path, tmp_path: Path
) -> None:
    running = process(WRITE, local.uri, str(folder), cache=tmp_path / "cache")
    assert running.stdout is not None
    running.stdout.readline()
    while not local.list("_models/podcasts/files"):
        time.sleep(0.01)
    kill(running)
    registry = ModelRegistry(local)
    assert registry.names() == []
    assert registry.remove_unused(1).files == 0, "a registration may be writing them"
    assert registry.remove_unused(1, min_age=timedelta(0)).files > 0
    assert [p for p in Path(local.uri).rglob("*") if p.is_file()] == []


def test_models_that_an_index_names_stay_with_their_files(local: Store, folder: Path) -> None:
    registry, versions = ModelRegistry(local), []
    for number in range(4):
        (folder / "model.safetensors").write_bytes(WEIGHTS + bytes([number]))
        versions.append(registered(local, folder))
    spec = parse_spec(
        {
            "index": "talks",
            "source": {"text": "text"},
            "encoder": {"model": "store:podcasts@1"},
            "named_vectors": {"second": {"encoder": {"model": "store:podcasts@2"}}},
        }
    )
    vectors = VectorsInfo(dimensions=4, encoder={"digest": "0"})
    create_index(local, spec, vectors={"": vectors, "second": vectors})
    removed = registry.remove_unused(1, min_age=timedelta(0))
    assert (removed.versions, removed.files) == (("podcasts@3",), 1)
    assert registry.versions("podcasts") == [1, 2, 4]
    for version in (versions[0], versions[1], versions[3]):
        with contextlib.ExitStack() as stack:
            stack.enter_context(cached_model(local, version))
    assert not local.exists(versions[2].file_key("model.safetensors"))
