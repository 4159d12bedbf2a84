"""Workers: an answer for each request, whatever the others do."""

import os

import pytest

from grouprl.tasks.isolated import Failure, WorkerPool, WorkerStartError

SCRIPT = """
import json, os, sys, time

out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

def send(reply):
    out.write(json.dumps(reply) + "\\n")
    out.flush()

send({"ready": True})
for line in sys.stdin:
    what = json.loads(line)
    if what == "hang":
        time.sleep(3600)
    elif what == "die":
        os._exit(7)
    elif what == "raise":
        send({"error": "ValueError: no"})
    elif what == "print":
        print("noise")
        send({"value": "quiet"})
    elif what == "environment":
        send({"value": dict(os.environ)})
    elif what == "set":
        send({"value": str({"a", "b", "c", "d"})})
    elif what == "pid":
        send({"value": os.getpid()})
    else:
        send({"value": what})
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "worker.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def pool(script):
    made = WorkerPool(script, timeout_s=20, size=1)
    yield made
    made.close()


def test_a_request_that_never_ends_costs_itself_alone(script):
    pool = WorkerPool(script, timeout_s=0.5, size=1)
    first, hung, second = pool.ask_all([1, "hang", 2])
    assert (first, second) == (1, 2)
    assert (hung.kind, hung.reason) == ("timeout", "no answer within the time limit")
    pool.close()


def test_a_crash_costs_itself_alone(pool):
    before, died, after = pool.ask_all(["pid", "die", "pid"])
    assert died == Failure("died", "the process ended (exit status 7)")
    assert before != after
    assert isinstance(before, int)
    assert isinstance(after, int)


def test_an_error_keeps_the_process(pool):
    before, raised, after = pool.ask_all(["pid", "raise", "pid"])
    assert raised == Failure("raised", "ValueError: no")
    assert before == after


def test_what_is_printed_is_no_answer(pool):
    assert pool.ask_all(["print", {"a": [1, None]}, "\ud800"]) == ["quiet", {"a": [1, None]}, "\ud800"]


def test_many_requests_to_several_workers_come_back_in_order(script):
    pool = WorkerPool(script, timeout_s=20, size=3)
    assert pool.ask_all(list(range(100))) == list(range(100))
    pool.close()


def test_secrets_stay_here_and_sets_have_one_order(pool, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    environment, order = pool.ask_all(["environment", "set"])
    assert "HF_TOKEN" not in environment
    assert "secret" not in environment.values()
    pool.close()
    assert pool.ask("set") == order


def test_a_closed_pool_can_be_asked_again_and_leaves_nothing(pool):
    first = pool.ask("pid")
    pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    assert pool.ask("pid") != first


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_module_here", "the process ended \\(exit status 1\\)"),
        ('print(\'{"error": "ImportError: gone"}\')', "ImportError: gone"),
    ],
)
def test_a_script_that_does_not_start(tmp_path, source, message):
    path = tmp_path / "worker.py"
    path.write_text(source)
    with pytest.raises(WorkerStartError, match=message):
        WorkerPool(path, timeout_s=1, size=1).ask(1)
