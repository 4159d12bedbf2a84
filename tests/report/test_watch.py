"""The page that follows a run: on loopback, to GET, to its own name alone; never a file; and it keeps up."""

from __future__ import annotations

import html
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from grouprl.errors import RunError
from grouprl.records import append_jsonl
from grouprl.report import findings
from grouprl.report.watch import Watch

from .conftest import METRICS


@pytest.fixture
def watching():
    """watching(path): a server of that run, in a thread."""
    started = []

    def start(path, **options):
        watch = Watch(path, **options)
        thread = threading.Thread(target=watch.serve)
        thread.start()
        started.append((watch, thread))
        return watch

    yield start
    for watch, thread in started:
        watch.stop()
        thread.join()


def ask(watch, path="/", *, method="GET", host=None, body=None):
    """(status, text, headers) of one request, its path and host sent as they are."""
    connection = http.client.HTTPConnection("127.0.0.1", watch.port, timeout=60)
    try:
        connection.putrequest(method, path, skip_host=True)
        if host != "":
            connection.putheader("Host", host or f"127.0.0.1:{watch.port}")
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


def test_the_page_and_its_stamp(make_run, watching):
    watch = watching(make_run(2).path)
    status, page, headers = ask(watch)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "Mean reward 0.25" in page
    assert "connect-src 'self';" in html.unescape(page)
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "Python" not in headers["Server"]
    _, stamp, _ = ask(watch, "/stamp")
    assert f'data-live="{stamp}"' in page
    assert ask(watch, host=f"localhost:{watch.port}")[0] == 200


def test_it_listens_on_the_loopback_address_alone(make_run, watching):
    watch = watching(make_run(1).path)
    assert watch.url == f"http://127.0.0.1:{watch.port}/"
    with pytest.raises(ConnectionRefusedError):  # a wildcard address would take this one, too
        socket.create_connection(("127.0.0.2", watch.port), timeout=5)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:PORT", "127.0.0.1.evil.example:PORT", "", "127.0.0.1", "[::1]:PORT"],
)
def test_another_name_is_refused(make_run, watching, host):
    """A page of evil.example that points its name at 127.0.0.1 sends its own name as Host."""
    watch = watching(make_run(1).path)
    for path in ("/", "/stamp"):
        status, text, _ = ask(watch, path, host=host.replace("PORT", str(watch.port)))
        assert status == 421
        assert "Mean reward" not in text


@pytest.mark.parametrize(
    "request_lines",
    [
        "GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nHost: evil.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: evil.example\r\nHost: 127.0.0.1:PORT\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET /\r\nHost: 127.0.0.1:PORT\r\n\r\n",
        "GET http://127.0.0.1:PORT/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    ],
    ids=["two", "two, ours last", "none", "HTTP/0.9", "a URL of ours"],
)
def test_what_no_browser_asks_gets_no_page(make_run, watching, request_lines):
    """Two names, or none, or a version of HTTP whose answers have no headers to say what may be done with them."""
    watch = watching(make_run(1).path)
    with socket.create_connection(("127.0.0.1", watch.port), timeout=30) as asking:
        asking.sendall(request_lines.replace("PORT", str(watch.port)).encode())
        with asking.makefile("rb") as answer:
            said = answer.read()
    assert b"served to 127.0.0.1 alone" in said
    assert b"Mean reward" not in said


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "BREW"])
def test_only_get_is_answered(make_run, watching, method):
    watch = watching(make_run(1).path)
    status, _, headers = ask(watch, method=method)
    assert (status, headers["Allow"]) == (405, "GET")


@pytest.mark.parametrize(
    "path",
    [
        "/config.toml",
        "/metrics.jsonl",
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/rollouts/step_00001.parquet",
        "/?a",
        "http://evil.example/",
        "\\..\\",
    ],
)
def test_no_path_is_a_file(make_run, watching, path):
    status, text, _ = ask(watching(make_run(1).path), path)
    assert status == 404
    assert "bundled" not in text
    assert "root:" not in text


def test_the_stamp_changes_when_the_run_grows_and_the_page_with_it(make_run, watching):
    run = make_run(1)
    watch = watching(run.path)
    first = ask(watch, "/stamp")[1]
    assert ask(watch, "/stamp")[1] == first
    append_jsonl(run.metrics_path, {"step": 2, **METRICS, "reward_mean": 0.75})
    assert ask(watch, "/stamp")[1] != first
    assert "Mean reward 0.25 to 0.75" in ask(watch)[1]


@pytest.fixture
def slow_check():
    """A check that finds something once it is let."""
    let = threading.Event()

    @findings.register("slow")
    def slow(run):
        assert let.wait(60)
        yield findings.Finding(
            "slow", findings.Severity.INFO, f"{len(run.steps)} steps seen", "They were.", ()
        )

    yield let
    let.set()
    findings.unregister("slow")


def until(watch, other_than):
    """The stamp, once it is another one."""
    for _ in range(600):
        if (stamp := ask(watch, "/stamp")[1]) != other_than:
            return stamp
        time.sleep(0.1)
    raise AssertionError("the stamp stayed")


def test_the_page_does_not_wait_for_its_findings(make_run, watching, slow_check):
    run = make_run(2)
    watch = watching(run.path)
    stamp = ask(watch, "/stamp")[1]
    assert "Looking through the records" in ask(watch)[1]
    assert ask(watch, "/stamp")[1] == stamp
    slow_check.set()
    found = until(watch, stamp)
    assert "2 steps seen" in ask(watch)[1]
    slow_check.clear()
    append_jsonl(run.metrics_path, {"step": 3, **METRICS})
    grown = until(watch, found)
    assert "2 steps seen" in ask(watch)[1]  # those of before, until there are new ones
    slow_check.set()
    until(watch, grown)
    assert "2 steps seen" in ask(watch)[1]
    assert "Looking through" not in ask(watch)[1]


def test_a_server_that_is_closed_looks_no_further(make_run, watching, slow_check):
    watch = watching(make_run(1).path)
    ask(watch)
    threading.Timer(0.2, slow_check.set).start()
    watch.close()
    assert watch._pages.findings.known is None


def test_a_run_that_has_no_step_yet_is_shown_as_such(make_run, watching):
    assert "No step is finished yet" in ask(watching(make_run(0).path))[1]


def test_a_record_that_cannot_be_read_is_said_and_the_server_goes_on(make_run, watching):
    run = make_run(1)
    watch = watching(run.path)
    whole = run.metrics_path.read_bytes()
    run.metrics_path.write_bytes(b"no json\n" + whole)
    status, text, _ = ask(watch)
    assert status == 503
    assert "metrics.jsonl, line 1" in text
    run.metrics_path.write_bytes(whole)
    assert ask(watch)[0] == 200


def test_no_run_and_no_port_are_errors(make_run, watching, tmp_path):
    with pytest.raises(RunError, match="does not exist"):
        Watch(tmp_path / "none")
    watch = watching(make_run(1).path)
    with pytest.raises(RunError, match=f"port {watch.port} cannot be used"):
        Watch(watch.run.path, port=watch.port)


def test_the_page_keeps_up_and_keeps_its_filter(make_run, watching, look):
    run = make_run(1)
    watch = watching(run.path)
    seen = look(watch.url).ready()
    seen.page.locator("[data-filter=spread]").click()
    seen.says("1 group,")
    make_run_longer(run)
    seen.page.locator("[data-part=facts]", has_text="3 of 2").wait_for()
    assert seen.page.locator("[data-filter=spread]").get_attribute("aria-pressed") == "true"
    seen.says("1 group,")
    assert (
        "step 3" in seen.texts("[data-part=tiles]")[0] or "0.25 to 0.75" in seen.texts("[data-part=tiles]")[0]
    )
    assert seen.page.locator("[data-figure=reward] svg").count() == 1
    assert seen.complaints == []
    assert {address.removeprefix(watch.url) for address in seen.asked} <= {"", "stamp"}


def make_run_longer(run):
    for step in (2, 3):
        append_jsonl(run.metrics_path, {"step": step, **METRICS, "reward_mean": 0.25 * step})


def test_a_page_that_began_before_the_first_step_gets_its_groups(make_run, watching, look):
    rows = make_run(1, name="other").rollouts_path(1).read_bytes()
    run = make_run(0)
    seen = look(watching(run.path).url)
    assert "No step is finished yet" in seen.page.inner_text("main")
    run.rollouts_dir.mkdir(exist_ok=True)
    run.rollouts_path(1).write_bytes(rows)
    append_jsonl(run.metrics_path, {"step": 1, **METRICS})
    seen.ready()
    assert seen.texts("[data-count]") == ["2 groups, 4 completions"]
    assert seen.complaints == []


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_ends_the_command_quietly(make_run):
    run = make_run(1)
    command = [sys.executable, "-m", "grouprl.cli.main", "watch", str(run.path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        line = process.stdout.readline()
        assert "http://127.0.0.1:" in line
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err.strip()) == (0, "", "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["nowhere"], "nowhere: does not exist"),
        (["RUN", "--completions", "0"], "--completions is 0, expected at least 1"),
        (["RUN", "--port", "70000"], "--port is 70000, expected 0 to 65535"),
        (["RUN", "--port", "x"], "watch:"),
    ],
)
def test_what_cannot_be_used_is_said_on_one_line(make_run, capsys, options, said):
    from grouprl.cli.main import main

    run = make_run(1)
    assert main(["watch", *(str(run.path) if o == "RUN" else o for o in options)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_the_run_is_never_written_to(make_run, watching):
    run = make_run(2, evaluations=1)

    def state():
        return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in Path(run.path).rglob("*")}

    before = state()
    watch = watching(run.path)
    ask(watch)
    ask(watch, "/stamp")
    assert state() == before
