"""`scannery evaluate` and `scannery recall`, on a store and on a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import scannery
from scannery.cli.index_samples import existing_documents
from scannery.evaluation.judgements import query_id_of
from tests.cli.test_commands import in_json, run
from tests.embed.tiny_models import make_cross_encoder
from tests.served import copied, make_text_store, serving

QUERIES = {"1": "molten rock", "2": "baking at home", "3": "nobody judged this"}
QRELS = "query-id\tcorpus-id\tscore\n1\tvolcano\t1\n2\tbread\t1\n"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text_store(tmp_path_factory.mktemp("evaluate"), lexical=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("collection")
    queries, qrels = folder / "queries.jsonl", folder / "qrels.tsv"
    queries.write_text("".join(json.dumps({"_id": n, "text": t}) + "\n" for n, t in QUERIES.items()))
    qrels.write_text(QRELS)
    return str(queries), str(qrels)


@pytest.fixture(scope="module", params=["store", "target"])
def place(request: pytest.FixtureRequest, store: Path) -> Iterator[tuple[str, str]]:
    if request.param == "store":
        yield "--store", str(store)
        return
    with serving(store, device="cpu") as server:
        yield "--target", server.address


@pytest.mark.system
def test_every_mode_is_evaluated_and_compared(
    capsys: pytest.CaptureFixture[str], place: tuple[str, str], files: tuple[str, str]
) -> None:
    arguments = ("evaluate", "-i", "texts", *place, "--queries", files[0], "--qrels", files[1], "-k", "3")
    answer = in_json(capsys, *arguments)
    assert (answer["queries"], answer["left_out"]) == (2, 1)
    assert list(answer["modes"]) == ["dense", "lexical", "hybrid"]
    for name, mode in answer["modes"].items():
        assert list(mode["metrics"]) == ["nDCG@10", "MRR@10", "MAP", "recall@3", "success@10", "judged@10"]
        # No sentence has the word "baking"; one has "bake", which has the same stem.
        assert mode["metrics"]["MRR@10"]["mean"] == 1, name
    status, output, _ = run(capsys, *arguments)
    assert status == 0
    assert "2 queries; 95 % intervals" in output
    assert "Differences, query by query" in output
    assert "Left out, without a relevant document: 1" in output


@pytest.mark.system
def test_filters_and_modes_reach_the_index(
    capsys: pytest.CaptureFixture[str], place: tuple[str, str], files: tuple[str, str]
) -> None:
    arguments = ("evaluate", "-i", "texts", *place, "--queries", files[0], "--qrels", files[1])
    answer = in_json(capsys, *arguments, "-m", "lexical,dense", "--where", '{"letters": 0}')
    assert list(answer["modes"]) == ["dense", "lexical"]
    assert {mode["metrics"]["nDCG@10"]["mean"] for mode in answer["modes"].values()} == {0}


def test_recall_is_measured_with_a_filter(
    capsys: pytest.CaptureFixture[str], place: tuple[str, str], files: tuple[str, str]
) -> None:
    answer = in_json(
        capsys, "recall", "-i", "texts", *place, "--queries", files[0], "--where", '{"letters": {"$gt": 60}}'
    )
    assert (answer["recall"]["mean"], answer["short"], answer["queries"]) == (1, 0, 3)
    assert answer["sampled"] is False


@pytest.mark.system
def test_recall_needs_no_queries(capsys: pytest.CaptureFixture[str], place: tuple[str, str]) -> None:
    status, output, _ = run(capsys, "recall", "-i", "texts", *place, "-k", "2")
    assert status == 0
    assert output.startswith("recall@2  1.0000 (1.000–1.000), worst 1.00, of 6 vectors near stored ones")


def test_wrong_use_is_one_line(
    capsys: pytest.CaptureFixture[str], store: Path, files: tuple[str, str]
) -> None:
    arguments = ("evaluate", "-i", "texts", "-s", str(store), "--qrels", files[1], "--queries")
    status, _, errors = run(capsys, *arguments, files[0], "-m", "fuzzy")
    assert (status, "--mode must be one or more of dense, lexical, hybrid" in errors) == (2, True)
    status, _, errors = run(capsys, *arguments, "/no/such/file")
    assert (status, errors.startswith("error: queries: cannot read /no/such/file")) == (3, True)
    status, _, errors = run(capsys, *arguments, files[1])
    assert (status, "line 1: must have an id and a text" in errors) == (2, True)


@pytest.mark.system
def test_a_sweep_is_compared_with_its_best_and_written_to_files(
    capsys: pytest.CaptureFixture[str], place: tuple[str, str], files: tuple[str, str], tmp_path: Path
) -> None:
    arguments = ("evaluate", "-i", "texts", *place, "--queries", files[0], "--qrels", files[1], "-k", "3")
    sweep = (
        "--sweep", "alpha=0.2..0.8:0.3", "--sweep", "mode=lexical,hybrid", "--measure", "MRR@10,success@1",
    )  # fmt: skip
    outputs = (
        "--run", f"{tmp_path}/r.trec", "--per-query", f"{tmp_path}/q.jsonl", "--plot", f"{tmp_path}/p.svg",
    )  # fmt: skip
    answer = in_json(capsys, *arguments, *sweep, *outputs)
    names = ["lexical", "hybrid alpha=0.2", "hybrid alpha=0.5", "hybrid alpha=0.8"]
    assert list(answer["modes"]) == names
    assert answer["modes"]["hybrid alpha=0.5"]["options"] == {"mode": "hybrid", "alpha": 0.5, "k": 3}
    assert (answer["main_measure"], answer["best"]) == ("MRR@10", "lexical")
    assert [pair["modes"] for pair in answer["comparisons"]] == [["lexical", name] for name in names[1:]]
    assert answer["comparisons"][0]["metrics"]["MRR@10"] == {
        "mean": 0, "low": 0, "high": 0, "better": 0, "worse": 0, "equal": 2,
    }  # fmt: skip
    assert answer["files"] == [str(tmp_path / name) for name in [
        "r.lexical.trec", "r.hybrid_alpha=0.2.trec", "r.hybrid_alpha=0.5.trec", "r.hybrid_alpha=0.8.trec", "q.jsonl",
        "p.svg",
    ]]  # fmt: skip
    assert (tmp_path / "r.lexical.trec").read_text().startswith("1 Q0 volcano 1 ")
    assert len((tmp_path / "q.jsonl").read_text().splitlines()) == 8
    assert "</svg>" in (tmp_path / "p.svg").read_text()
    status, output, _ = run(capsys, *arguments, *sweep, "--baseline", "hybrid alpha=0.2")
    assert (status, "MRR@10 − baseline" in output, "the best of 4 configurations" in output) == (
        0,
        True,
        True,
    )


@pytest.mark.system
def test_words_may_be_mistyped_or_begun(
    capsys: pytest.CaptureFixture[str], store: Path, files: tuple[str, str], tmp_path: Path
) -> None:
    queries = tmp_path / "queries.tsv"
    queries.write_text("1\tmoltem\n2\tovernig\n")
    arguments = ("evaluate", "-i", "texts", "-s", str(store), "--queries", str(queries), "--qrels", files[1])

    def success(*options: str) -> dict[str, list[float]]:
        files = ("--per-query", f"{tmp_path}/q.jsonl", "--plot", f"{tmp_path}/p.svg")
        run(capsys, *arguments, "-m", "lexical", "--measure", "success@1", *options, *files)
        lines = map(json.loads, (tmp_path / "q.jsonl").read_text().splitlines())
        values: dict[str, list[float]] = {}
        for line in lines:
            values.setdefault(line["configuration"], []).append(line["success@1"])
        return values

    assert success("--no-typos") == {"lexical": [0, 0]}
    assert success("--prefix") == {"lexical": [1, 1]}
    assert success("--sweep", "prefix=true,false") == {
        "lexical prefix=true": [1, 1],
        "lexical prefix=false": [1, 0],
    }


@pytest.mark.system
def test_hits_can_be_swept(
    capsys: pytest.CaptureFixture[str], store: Path, files: tuple[str, str], tmp_path: Path
) -> None:
    arguments = ("evaluate", "-i", "texts", "-s", str(store), "--queries", files[0], "--qrels", files[1])
    answer = in_json(capsys, *arguments, "-m", "dense", "--sweep", "k=1,6", "--plot", f"{tmp_path}/p.png")
    assert list(answer["modes"]["dense k=6"]["metrics"]) == [
        "nDCG", "MRR", "MAP", "recall", "success", "judged",
    ]  # fmt: skip
    assert answer["modes"]["dense k=6"]["metrics"]["judged"]["mean"] == pytest.approx(1 / 6)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.system
def test_reranking_can_be_swept(
    capsys: pytest.CaptureFixture[str], store: Path, files: tuple[str, str], tmp_path: Path
) -> None:
    model = make_cross_encoder(tmp_path)
    with serving(store, device="cpu", reranker=str(model)) as server:
        arguments = (
            "evaluate", "-i", "texts", "-t", server.address, "--queries", files[0], "--qrels", files[1],
        )  # fmt: skip
        run_file = tmp_path / "run.trec"
        capsys.readouterr()  # progress of writing the model
        answer = in_json(
            capsys, *arguments, "-m", "dense", "--sweep", "rerank=0,3", "-k", "6", "--run", str(run_file)
        )
        with scannery.connect(server.address) as client:
            hits = client.index("texts").search(QUERIES["1"], 6, rerank=3, mode="dense")
    assert list(answer["modes"]) == ["dense rerank=0", "dense rerank=3"]
    lines = (tmp_path / "run.dense_rerank=3.trec").read_text().splitlines()
    assert [line.split()[2] for line in lines if line.startswith("1 ")] == [hit.id for hit in hits]


@pytest.mark.system
def test_queries_are_derived_where_there_are_none(
    capsys: pytest.CaptureFixture[str], place: tuple[str, str]
) -> None:
    answer = in_json(capsys, "evaluate", "-i", "texts", *place, "--derive", "6", "-k", "6")
    assert (answer["queries"], answer["left_out"], answer["derived"]) == (6, 0, "sentence")
    assert answer["modes"]["lexical"]["metrics"]["success@10"]["mean"] == 1
    assert any("do not show which mode is better" in text for text in answer["warnings"])
    status, output, _ = run(capsys, "evaluate", "-i", "texts", *place, "--derive", "6")
    assert (status, "6 sentences as queries" in output, "Differences" in output) == (0, True, False)


def test_what_is_odd_is_told(
    capsys: pytest.CaptureFixture[str], place: tuple[str, str], files: tuple[str, str], tmp_path: Path
) -> None:
    qrels = tmp_path / "qrels.trec"
    qrels.write_text("1 0 volcano 1\n1 0 gone 1\n1 0 volcano 1\n7 0 bread 1\n2 0 bread 1\n")
    arguments = ("evaluate", "-i", "texts", *place, "--queries", files[0], "--qrels", str(qrels))
    where = json.dumps({"letters": {"$gt": 10_000}})
    answer = in_json(capsys, *arguments, "-m", "lexical", "--where", where)
    check = answer["collection"]
    assert (check["unknown_documents"], check["unknown_queries"], check["repeated"]) == (["gone"], ["7"], 1)
    assert answer["modes"]["lexical"]["empty"] == 2
    assert answer["warnings"] == [
        "1 judged documents are not in the index (gone); 1 of 3 relevant pairs can therefore not be found",
        "1 judged queries are not in the file of queries (7)",
        "1 judgements repeat a pair of query and document, 0 with another level; the last one counts",
        "lexical: 2 queries have no hit",
    ]
    status, output, _ = run(capsys, *arguments, "-m", "lexical", "--where", where)
    assert (status, output.count("warning: ")) == (0, 4)


@pytest.mark.system
def test_live_writes_are_seen(capsys: pytest.CaptureFixture[str], store: Path, tmp_path: Path) -> None:
    queries, qrels = tmp_path / "queries.txt", tmp_path / "qrels.tsv"
    queries.write_text("a lighthouse on the cliff\n")
    qrels.write_text(f"{query_id_of('a lighthouse on the cliff')}\tlighthouse\t1\n")
    mine = copied(store, tmp_path)
    arguments = ("evaluate", "-i", "texts", "-s", str(mine), "--queries", str(queries), "--qrels", str(qrels))
    assert in_json(capsys, *arguments)["collection"]["unknown_documents"] == ["lighthouse"]
    with scannery.connect(str(mine)) as client:
        client.index("texts").upsert([{"id": "lighthouse", "text": "The lighthouse stands on a cliff."}])
    answer = in_json(capsys, *arguments)
    assert answer["collection"]["unknown_documents"] == []
    assert {mode["metrics"]["MRR@10"]["mean"] for mode in answer["modes"].values()} == {1}
    assert answer["snapshots"] == [{"index": "texts", "version": 1, "sequence": 1}]


def test_queries_with_vectors_need_no_encoder(
    capsys: pytest.CaptureFixture[str], library: Path, tmp_path: Path
) -> None:
    with scannery.connect(str(library)) as client:
        [hit] = client.index("library").search([1.0] * 16, 1, vectors=True)
    assert hit.vector is not None
    queries, qrels = tmp_path / "queries.jsonl", tmp_path / "qrels.tsv"
    queries.write_text(json.dumps({"_id": "q", "vector": hit.vector.tolist()}))
    qrels.write_text(f"q\t{hit.id}\t1\n")
    arguments = (
        "-i", "library", "-s", str(library), "--queries", str(queries), "--qrels", str(qrels), "--passages",
    )  # fmt: skip
    answer = in_json(capsys, "evaluate", *arguments)
    assert list(answer["modes"]) == ["dense"]
    assert answer["modes"]["dense"]["metrics"]["recall@100"]["mean"] == 1
    assert answer["collection"]["unknown_documents"] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sweep", "beta=1"), "--sweep: must be NAME=VALUES"),
        (("--sweep", "fusion=best"), "fusion must be one or more of weighted_score, reciprocal_rank"),
        (("--sweep", "mode=dense", "-m", "dense"), "give either --mode or --sweep mode"),
        (("--sweep", "alpha=0.1,0.2", "--alpha", "0.5"), "alpha is given twice"),
        (("--baseline", "hybird"), "--baseline: must be one of dense; lexical; hybrid, got 'hybird'"),
        (("--measure", "nDCG@10,speed"), "measure: must be one of nDCG"),
        (("--per-query", "x.txt"), "--per-query: must end with .jsonl or .csv"),
        (("--plot", "x.docx"), "--plot: must end with one of"),
        (("--run", "/no/such/folder/run"), "--run: there is no folder /no/such/folder"),
        (("--derive", "5"), "give either --derive, or --queries and --qrels"),
    ],
)
def test_wrong_options_are_clear_errors(
    capsys: pytest.CaptureFixture[str],
    store: Path,
    files: tuple[str, str],
    options: tuple[str, ...],
    message: str,
) -> None:
    arguments = ("evaluate", "-i", "texts", "-s", str(store), "--queries", files[0], "--qrels", files[1])
    status, _, errors = run(capsys, *arguments, *options)
    assert (status, message in errors) == (2, True), errors


def test_files_or_derived_queries_are_needed(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    status, _, errors = run(capsys, "evaluate", "-i", "texts", "-s", str(store))
    assert (status, "give --queries and --qrels, or --derive N" in errors) == (2, True)


def test_documents_without_vectors_exist(tmp_path: Path) -> None:
    with scannery.connect(tmp_path) as client:
        index = client.create_index("mixed", dimensions=2)
        index.upsert([{"id": "a", "vector": [1, 0]}, {"id": "b"}, {"id": "c/0", "document_id": "c"}])
        assert existing_documents(index, ["a", "b", "c", "c/0", "d", "", "\n"]) == {"a", "b", "c"}
