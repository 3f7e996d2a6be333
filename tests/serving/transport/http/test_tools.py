"""Tools and standard libraries of other languages, with what they send by default."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from scannery.serving import Server
from tests.http1 import SEARCH
from tests.served import DIMENSIONS, serving

pytestmark = pytest.mark.system

BODY = json.dumps({"index": "library", "query": {"vector": {"values": np.ones(DIMENSIONS).tolist()}}})
JAVA = """
import java.net.URI;
import java.net.http.*;

public class Ask {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        String base = arguments[0], path = arguments[1], body = arguments[2];
        for (int times = 0; times < 2; times++) {
            HttpRequest search = HttpRequest.newBuilder(URI.create(base + path))
                .header("Content-Type", "application/json").POST(HttpRequest.BodyPublishers.ofString(body)).build();
            System.out.println(client.send(search, HttpResponse.BodyHandlers.ofString()).statusCode());
            for (String page : new String[] {"/readyz", "/openapi.json", "/v1/models", path}) {
                HttpRequest get = HttpRequest.newBuilder(URI.create(base + page)).build();
                System.out.println(client.send(get, HttpResponse.BodyHandlers.ofString()).statusCode());
            }
        }
        HttpRequest streamed = HttpRequest.newBuilder(URI.create(base + path))
            .header("Content-Type", "application/json").expectContinue(true)
            .POST(HttpRequest.BodyPublishers.ofInputStream(() -> new java.io.ByteArrayInputStream(body.getBytes())))
            .build();
        System.out.println(client.send(streamed, HttpResponse.BodyHandlers.ofString()).statusCode());
    }
}
"""
NODE = """
const [base, path, body] = process.argv.slice(1);
const headers = {'content-type': 'application/json'};
const asks = [[path, {method: 'POST', body, headers}], ['/readyz'], ['/readyz', {method: 'HEAD'}], ['/v1/nothing'],
    [path, {method: 'POST', headers, duplex: 'half', body: new Blob(['\\ufeff' + body]).stream()}],
    [path, {method: 'DELETE'}]];
for (const [where, options] of asks) {
    const answer = await fetch(base + where, options);
    await answer.text();
    console.log(answer.status);
}
const answers = await Promise.all(Array.from({length: 8}, () => fetch(base + path, {method: 'POST', body, headers})));
console.log(new Set(answers.map((answer) => answer.status)).has(200) ? 200 : 0);
"""


@pytest.fixture(scope="module")
def server(library: Path) -> Iterator[Server]:
    with serving(library, recall_share=0) as server:
        yield server


def output(*command: str) -> list[int]:
    """Return the statuses that a program prints."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


@pytest.mark.system
def test_java(server: Server, tmp_path: Path) -> None:
    """`HttpClient.newHttpClient()` offers h2c with each first request of a connection."""
    (tmp_path / "Ask.java").write_text(JAVA)
    base = f"http://127.0.0.1:{server.http_port}"
    statuses = output("java", str(tmp_path / "Ask.java"), base, SEARCH, BODY)
    assert statuses == [200, 200, 200, 200, 405] * 2 + [200]


@pytest.mark.system
def test_node(server: Server) -> None:
    base = f"http://127.0.0.1:{server.http_port}"
    statuses = output("node", "--input-type=module", "-e", NODE, base, SEARCH, BODY)
    assert statuses == [200, 200, 200, 404, 200, 405, 200]


@pytest.mark.parametrize(
    ("options", "path", "status"),
    [
        (("--http2",), "/readyz", 200),
        (("--http2", "-d", BODY), SEARCH, 200),
        (("--http1.0",), "/readyz", 200),
        (("--http1.0", "-H", "Host:"), "/readyz", 200),
        (("--http1.0", "-H", "Host:", "-d", BODY), SEARCH, 200),
        (("-H", "Host:"), "/readyz", 400),
        (("-H", "Expect: 100-continue", "-d", BODY), SEARCH, 200),
        (("-H", "Expect:", "-d", BODY), SEARCH, 200),
        (("-H", "Transfer-Encoding: chunked", "-d", BODY), SEARCH, 200),
        (("-I",), "/openapi.json", 200),
        (("--compressed",), "/openapi.json", 200),
        (("-X", "OPTIONS", "--request-target", "*"), "/", 204),
        (("-X", "GET", "-d", "{}"), "/readyz", 400),
        (("-X", "PUT", "-d", "{}"), "/readyz", 405),
        (("--http2", "-X", "DELETE"), SEARCH, 405),
    ],
)
def test_curl(server: Server, options: tuple[str, ...], path: str, status: int) -> None:
    base = f"http://127.0.0.1:{server.http_port}"
    common = ("curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "60", *options)
    assert output(*common, "-H", "Content-Type: application/json", f"{base}{path}") == [status]
    if "Host:" not in options and "--request-target" not in options:
        # As a proxy gets it: the target is absolute.
        proxied = ("--proxy", base, "-H", "Content-Type: application/json", f"http://localhost:1{path}")
        assert output(*common, *proxied) == [status]
