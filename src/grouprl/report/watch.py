"""A local page that follows a run: the report, rendered anew whenever the run's files have grown.

It answers on the loopback address alone, to GET alone, and at two places: `/`, the page, and `/stamp`, a short
text that changes with the run's files. No path of a request ever becomes a path of a file. A request whose Host
is another name is refused, so that a page from elsewhere cannot reach it by pointing a name of its own at
127.0.0.1 (DNS rebinding). Whoever has an account on the machine can open it.

The page does not wait for its findings: they are looked for in a thread of their own, at most half of the time and
for the newest state of the run's files. Until they are there the page shows those of the state before.
"""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic
from typing import Any, cast

from grouprl.errors import GrouprlError, RunError
from grouprl.records import RunFolder
from grouprl.report.findings.finding import Finding
from grouprl.report.findings.registry import run_checks
from grouprl.report.html import render
from grouprl.report.opening import readable
from grouprl.report.sources import Source, open_source

LOOPBACK = "127.0.0.1"
WATCHED_COMPLETIONS = 5_000
"""How many completions a followed page holds: it is made anew at each step."""

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Watch:
    """The server of one run's page. Use it as a context manager, or call `close`.

    Args:
        path: The run's folder.
        port: The port to listen on; 0 takes a free one.
        most_completions: At most so many completions are in the page.

    Raises:
        RunError: No run there, or the port is taken.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        port: int = 0,
        most_completions: int = WATCHED_COMPLETIONS,
    ) -> None:
        self.run = RunFolder.open(path)
        self._pages = _Pages(self.run, most_completions)
        try:
            self._server = _Server((LOOPBACK, port), _handler(self._pages))
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise RunError(
                f"grouprl watch: port {port} cannot be used ({reason}); leave --port out, or give another"
            ) from error

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{LOOPBACK}:{self.port}/"

    def serve(self) -> None:
        """Answer requests until `close` is called from another thread, or KeyboardInterrupt."""
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        """Stop listening, and looking for findings."""
        self._pages.findings.stop()
        self._server.server_close()

    def stop(self) -> None:
        """Let `serve`, in another thread, return; then stop listening."""
        self._server.shutdown()
        self.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Pages:
    """The newest page, made once for each state of the run's files."""

    def __init__(self, run: RunFolder, most_completions: int) -> None:
        self.run = run
        self.most_completions = most_completions
        self.findings = _Findings()
        self._lock = threading.Lock()
        self._made: tuple[str, str] | None = None
        self._source: tuple[str, Source] | None = None

    def stamp(self) -> str:
        """A text that is another one when a file of the run that the page shows is, or its findings are."""
        return f"{self._files()}-{self.findings.count}"

    def _files(self) -> str:
        run = self.run
        watched = [run.config_path, run.metrics_path, run.evaluations_path]
        watched += [run.rollouts_path(step) for step in run.rollout_steps()]
        facts = hashlib.sha256()
        for path in watched:
            try:
                status = path.stat()
                facts.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\n".encode())
            except OSError:
                facts.update(f"{path.name} absent\n".encode())
        return facts.hexdigest()[:16]

    def page(self) -> str:
        with self._lock:  # two readers that ask at once get one page
            stamp = self.stamp()
            if self._made is None or self._made[0] != stamp:
                files = stamp.partition("-")[0]
                if self._source is None or self._source[0] != files:
                    self._source = files, open_source(RunFolder.open(self.run.path))
                source = self._source[1]
                page = render(
                    source, findings=self.findings.known, live=stamp, most_completions=self.most_completions
                )
                self._made = (stamp, page)
                self.findings.look(source, files)
            return self._made[1]


class _Findings:
    """The newest findings, looked for one state of the files at a time, in a thread that is there while it is needed.

    What took a second is not begun again for a second: a run that goes on writes its next step meanwhile.
    """

    def __init__(self) -> None:
        self.known: Sequence[Finding] | None = None
        self.count = 0
        """How often they were found: the page is made anew with each."""
        self._wanted: tuple[Source, str] | None = None
        self._looked_at = ""
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def look(self, source: Source, files: str) -> None:
        """Look through these records, after those that are being looked through; only the newest wait."""
        with self._lock:
            if files == self._looked_at or source.run is None or self._stopped.is_set():
                return
            self._looked_at, self._wanted = files, (source, files)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="findings", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Give up after the check that is being made."""
        self._stopped.set()
        thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while not self._stopped.is_set():
            with self._lock:
                wanted, self._wanted = self._wanted, None
                if wanted is None:
                    self._thread = None
                    return
            start = monotonic()
            self._find(wanted[0])
            self._stopped.wait(monotonic() - start)

    def _find(self, source: Source) -> None:
        assert source.run is not None  # noqa: S101
        try:
            with readable(source.name):
                found = run_checks(source.run, stop=self._stopped.is_set)
        except GrouprlError:  # a file that goes while it is read: the next page says so
            return
        if not self._stopped.is_set():
            self.known, self.count = found, self.count + 1


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    address_family = socket.AF_INET

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that goes away in the middle of an answer is no news."""


def _handler(pages: _Pages) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 30
        server_version = "grouprl"
        sys_version = ""

        def do_GET(self) -> None:
            if not self._is_local():
                self._answer(HTTPStatus.MISDIRECTED_REQUEST, "this page is served to 127.0.0.1 alone")
                return
            try:
                if self.path == "/":
                    self._answer(HTTPStatus.OK, pages.page(), kind="text/html")
                elif self.path == "/stamp":
                    self._answer(HTTPStatus.OK, pages.stamp())
                else:
                    self._answer(HTTPStatus.NOT_FOUND, "there is nothing here but the page itself, /")
            except GrouprlError as error:
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
            except OSError as error:  # the folder was moved, say
                if not isinstance(error, ConnectionError):
                    self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"the run cannot be read: {error.strerror}")

        def _is_local(self) -> bool:
            """Whether it names this server, once, in a version that has headers: no browser asks otherwise."""
            _, port = cast("tuple[str, int]", self.server.server_address)
            hosts = self.headers.get_all("Host", [])
            named = len(hosts) == 1 and hosts[0] in (f"{LOOPBACK}:{port}", f"localhost:{port}")
            return named and self.request_version != "HTTP/0.9"

        def _answer(self, status: HTTPStatus, text: str, *, kind: str = "text/plain") -> None:
            body = text.encode(errors="replace")
            self.send_response(status)
            for name, value in HEADERS.items():
                self.send_header(name, value)
            if status == HTTPStatus.METHOD_NOT_ALLOWED:
                self.send_header("Allow", "GET")
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
            """Of a method or a request that is not understood; without the request's own words in it."""
            status = HTTPStatus(code)
            if status == HTTPStatus.NOT_IMPLEMENTED:
                status = HTTPStatus.METHOD_NOT_ALLOWED
            self.close_connection = True
            self._answer(status, status.phrase)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the terminal belongs to whoever started it."""

    return Handler
