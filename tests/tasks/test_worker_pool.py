"""Processes with limits: what hangs, dies, or is left behind."""

import gc
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from grouprl.tasks import math_worker, reasoning_gym_task, worker_process
from grouprl.tasks.worker_pool import Failure, WorkerPool, WorkerStartError

SCRIPT = """
import os, time

def load():
    def answer(request):
        kind, value = request
        if kind == "sleep":
            time.sleep(value)
        if kind == "die":
            os._exit(value)
        if kind == "raise":
            raise ValueError("no\\nway")
        if kind == "exit":
            raise SystemExit(3)
        if kind == "print":
            print("noise")
        if kind == "write":  # on whatever is open beside the three standard ones
            for descriptor in range(3, 10):
                try:
                    os.write(descriptor, b"no JSON\\n")
                except OSError:
                    pass
        if kind == "long":
            return "x" * value
        if kind == "no JSON":
            return {1, 2}
        if kind == "pid":
            return os.getpid()
        if kind == "environment":
            return os.environ.get(value)
        if kind == "set":
            return str(set(value))
        return value
    return answer
"""
LIMITS = {"time_limit_s": 10.0, "memory_limit_bytes": 1 << 30}


@pytest.fixture
def make(tmp_path):
    """Pools of a script, closed at the end."""
    pools = []

    def make(source=SCRIPT, *, processes=1, **limits):
        script = tmp_path / f"script{len(pools)}.py"
        script.write_text(textwrap.dedent(source))
        pools.append(WorkerPool(script, processes=processes, **{**LIMITS, **limits}))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def alive(pid):
    """Whether the process runs (a zombie, which nobody has waited for yet, does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("processes", [1, 3])
def test_answers_come_in_the_order_of_the_requests(make, processes):
    pool = make(processes=processes)
    requests = [["sleep", 0.2 if n == 0 else 0] for n in range(5)] + [["echo", n] for n in range(20)]
    assert pool.ask_all(requests) == [value for _, value in requests]
    assert pool.ask_all([]) == []
    assert pool.ask(["echo", {"a": [1, None, "\ud800"]}]) == {"a": [1, None, "\ud800"]}


def test_a_process_is_started_at_the_first_request_and_kept(make):
    pool = make()
    assert not pool._workers
    first = pool.ask(["pid", 0])
    assert pool.ask(["pid", 0]) == first
    pool.close()
    assert not alive(first)
    assert pool.ask(["pid", 0]) != first


def test_a_pool_that_nobody_has_any_more_leaves_no_process(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    pool = WorkerPool(script, processes=1, **LIMITS)
    pid = pool.ask(["pid", 0])
    del pool
    gc.collect()
    assert not alive(pid)


def test_another_is_started_only_where_there_is_so_much_to_do(make):
    pool = make(processes=3)
    assert len(set(pool.ask_all([["pid", 0]] * 4, requests_a_process=4))) == 1
    assert len(pool._workers) == 1
    pool.ask_all([["pid", 0]] * 5, requests_a_process=4)
    assert len(pool._workers) == 2


def test_what_runs_over_its_time_is_ended_and_replaced(make):
    pool = make()
    pid = pool.ask(["pid", 0])
    start = time.monotonic()
    hung, other, echo = pool.ask_all([["sleep", 1000], ["pid", 0], ["echo", 1]], time_limit_s=0.5)
    assert hung == Failure("timed_out", "no answer within the time limit")
    assert isinstance(other, int)
    assert other != pid
    assert echo == 1
    assert not alive(pid)
    assert time.monotonic() - start < 60  # not the 1000 seconds
    assert pool.ask(["sleep", 0.7]) == 0.7  # the limit was of those requests alone


@pytest.mark.parametrize(
    ("deadly", "reason"),
    [
        (["die", 7], r"the process ended \(exit status 7\)"),
        (["write", 0], "its reply is not JSON"),
        (["long", 3 << 20], "its reply is longer than 1,048,576 bytes"),
    ],
)
def test_what_brings_its_process_down_is_told_from_its_neighbours(make, deadly, reason):
    pool = make(processes=2)
    answers = pool.ask_all([["echo", 1], deadly, ["echo", 2], deadly, ["echo", 3]])
    assert answers[::2] == [1, 2, 3]
    for answer in answers[1::2]:
        assert answer.kind == "crashed"
        assert re.fullmatch(reason, answer.reason)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (["raise", 0], "ValueError: no way"),
        (["exit", 0], "SystemExit: 3"),
        (["no JSON", 0], "TypeError: Object of type set is not JSON serializable"),
    ],
)
def test_an_error_is_an_answer_and_keeps_the_process(make, request_, reason):
    before, raised, after = make().ask_all([["pid", 0], request_, ["pid", 0]])
    assert raised == Failure("raised", reason)
    assert before == after


def test_what_is_printed_is_no_answer(make):
    assert make().ask_all([["print", 1], ["echo", 2]]) == [1, 2]


def test_a_long_reply_where_it_is_allowed(make):
    assert make(max_reply_bytes=4 << 20).ask(["long", 3 << 20]) == "x" * (3 << 20)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_module_here", "^ModuleNotFoundError: No module named 'no_such_module_here'$"),
        ("import os; os._exit(5)", r"^the process ended \(exit status 5\)$"),
        ("x = 1", "^AttributeError: .* has no attribute 'load'$"),
    ],
)
def test_a_script_that_does_not_start_is_said_and_not_started_for_ever(make, source, message):
    pool = make(source)
    with pytest.raises(WorkerStartError, match=message):
        pool.ask(["echo", 1])
    assert not pool._workers


def test_an_interrupt_leaves_no_reply_for_the_next_run(make):
    pool = make()
    pool.ask(["echo", 0])

    def interrupt(signum, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            pool.ask(["sleep", 30])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert pool.ask(["echo", "fresh"]) == "fresh"


def test_keys_and_tokens_stay_here_and_sets_have_one_order(make, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    pool, letters = make(), ["a", "b", "c", "d"]
    token, hashing, order = pool.ask_all(
        [["environment", "HF_TOKEN"], ["environment", "PYTHONHASHSEED"], ["set", letters]]
    )
    assert (token, hashing) == (None, "0")
    pool.close()
    assert pool.ask(["set", letters]) == order


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS holds on Linux")
def test_the_limits_of_a_process(make, tmp_path):
    """Within them it goes on, beyond them it ends, and another starts; it writes no file."""
    source = f"""
    import os

    def load():
        def answer(request):
            what, size = request
            if what == "memory":
                return len(bytearray(size))
            with open({str(tmp_path / "written")!r}, "wb") as file:
                return file.write(bytes(size))
        return answer
    """
    asked = [["memory", 1 << 20], ["memory", 1 << 30], ["memory", 1 << 20], ["file", 10]]
    small, large, again, file = make(source).ask_all(asked)
    assert (small, large.kind, again) == (1 << 20, "crashed", 1 << 20)
    assert file.kind == "raised"
    assert "too large" in file.reason
    assert (tmp_path / "written").stat().st_size == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_uses_processes_of_its_own(make):
    pool = make()
    mine = pool.ask(["pid", 0])
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            theirs = pool.ask(["pid", 0])
            pool.close()
            os.write(writing, json.dumps(theirs).encode())
        finally:
            os._exit(0)
    os.close(writing)
    theirs = json.loads(os.read(reading, 100))
    os.close(reading)
    os.waitpid(child, 0)
    assert theirs != mine
    assert pool.ask(["pid", 0]) == mine


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize("busy", [False, True])
def test_no_process_outlives_a_killed_parent(busy, tmp_path):
    """kill -9 of the parent, its worker idle or at a request that never ends and looks at no signal in Python."""
    script = tmp_path / "script.py"
    script.write_text(
        "def load():\n    return lambda request: sum(9**9**9 for _ in range(9)) if request else request\n"
    )
    program = tmp_path / "parent.py"
    program.write_text(
        textwrap.dedent(f"""
        import threading, time
        from pathlib import Path
        from grouprl.tasks.worker_pool import WorkerPool
        pool = WorkerPool(Path({str(script)!r}), processes=1, time_limit_s=3.0, memory_limit_bytes=1 << 30)
        pool.ask(0)
        threading.Thread(target=pool.ask, args=({int(busy)},), daemon=True).start()
        time.sleep(0.5)
        print(pool._workers[0].process.pid, flush=True)
        time.sleep(600)
        """)
    )
    with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert alive(worker)
        parent.kill()
    deadline = time.monotonic() + 60
    while alive(worker) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(worker)


@pytest.mark.parametrize(
    "script", [math_worker.__file__, str(reasoning_gym_task.SCRIPT), worker_process.__file__]
)
def test_the_scripts_import_nothing_of_grouprl_nor_torch(script):
    imported = re.findall(
        r"^\s*(?:from|import) (\w+)", Path(script).read_text(encoding="utf-8"), re.MULTILINE
    )
    assert not {"grouprl", "torch", "transformers"} & set(imported)
