"""The metrics over HTTP: `GET /metrics`, and nothing else."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6

from scannery.serving.config import joined_address, split_address
from scannery.serving.errors import BindError

__all__ = ["MetricsServer"]

_LOG = logging.getLogger(__name__)


class MetricsServer:
    """Answers with what a function returns. Runs in a thread of its own."""

    def __init__(self, listen: str, text: Callable[[], str]) -> None:
        """Listen.

        Raises:
            BindError: the address is taken, or is not one of this machine.

        """
        host, port = split_address(listen)

        class Handler(BaseHTTPRequestHandler):
            # A scraper that sends nothing must not keep a thread.
            timeout = 10

            def do_GET(self) -> None:
                found = self.path.split("?")[0] == "/metrics"
                body = text().encode() if found else b"see /metrics\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                _LOG.debug(format, *arguments)

        class Http(ThreadingHTTPServer):
            address_family = AF_INET6 if ":" in host else AF_INET
            daemon_threads = True

        try:
            self._http = Http((host, port), Handler)
        except OSError as error:
            raise BindError(f"cannot listen on {listen}: {error.strerror}", field="metrics_listen") from error
        self.address = joined_address(host, self._http.server_address[1])
        self._thread = threading.Thread(target=self._http.serve_forever, name="scannery-metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop answering."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
