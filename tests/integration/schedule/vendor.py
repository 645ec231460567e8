"""A vendor of quantum computers, as far as a producer sees one: tasks go in by HTTP, and have an id."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Vendor:
    """``tasks`` has the ids that were given out."""

    def __init__(self, host: str) -> None:
        self.tasks: list[str] = []
        vendor = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                """NB also the submission: busybox has no other way to ask."""
                vendor.tasks.append(f"arn:aws:braket:us-east-1:0:quantum-task/{len(vendor.tasks)}")
                body = vendor.tasks[-1].encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_request(self, code: object = "-", size: object = "-") -> None:
                pass

        self._server = ThreadingHTTPServer((host, 0), Handler)
        self.url = f"http://{host}:{self._server.server_port}/tasks"

    def serve(self) -> None:
        self._server.serve_forever(poll_interval=0.05)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def vendor(host: str = "127.0.0.1") -> Iterator[Vendor]:
    found = Vendor(host)
    thread = threading.Thread(target=found.serve)
    thread.start()
    try:
        yield found
    finally:
        found.close()
        thread.join()
