"""Processes with limits: what hangs, dies, or is left behind."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from grouprl.errors import MissingDependency, RewardError
from grouprl.tasks import math_worker
from grouprl.tasks.worker_pool import Answer, WorkerPool

SCRIPT = """
import json, os, sys, time
settings = json.loads(sys.stdin.readline())
print(json.dumps(["ready"]), flush=True)
for line in sys.stdin:
    kind, value = json.loads(line)
    if kind == "sleep":
        time.sleep(value)
    if kind == "die":
        os._exit(value)
    if kind == "garbage":
        print("no JSON", flush=True)
        continue
    if kind == "flood":
        print("x" * value, flush=True)
        continue
    if kind == "pid":
        value = os.getpid()
    if kind == "environment":
        value = os.environ.get(value)
    print(json.dumps(value), flush=True)
"""


@pytest.fixture
def make(tmp_path):
    """Pools of a script, closed at the end."""
    pools = []

    def make(source=SCRIPT, *, processes=1, time_limit_s=10.0):
        script = tmp_path / f"script{len(pools)}.py"
        script.write_text(textwrap.dedent(source))
        pools.append(
            WorkerPool(
                script,
                extra="some",
                processes=processes,
                time_limit_s=time_limit_s,
                memory_limit_bytes=1 << 30,
            )
        )
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
    assert pool.run(requests) == [Answer("done", value) for _, value in requests]
    assert pool.run([]) == []


def test_a_process_is_started_at_the_first_request_and_kept(make):
    pool = make()
    assert not pool._workers
    (first,), (second,) = pool.run([["pid", 0]]), pool.run([["pid", 0]])
    assert first == second
    pool.close()
    assert not alive(first.value)
    (third,) = pool.run([["pid", 0]])
    assert third != first


def test_what_runs_over_its_time_is_ended_and_replaced(make):
    pool = make(time_limit_s=0.5)
    (pid,) = pool.run([["pid", 0]])
    start = time.monotonic()
    answers = pool.run([["sleep", 1000], ["pid", 0], ["echo", 1]])
    assert [a.status for a in answers] == ["timed_out", "done", "done"]
    assert answers[1].value != pid.value
    assert not alive(pid.value)
    assert time.monotonic() - start < 60  # not the 1000 seconds


@pytest.mark.parametrize("deadly", [["die", 1], ["garbage", 0], ["flood", 3 << 20]])
def test_what_brings_its_process_down_is_told_from_its_neighbours(make, deadly):
    pool = make(processes=2)
    answers = pool.run([["echo", 1], deadly, ["echo", 2], deadly, ["echo", 3]])
    assert [a.status for a in answers] == ["done", "crashed", "done", "crashed", "done"]
    assert [a.value for a in answers[::2]] == [1, 2, 3]


def test_a_script_that_lacks_a_package_says_which_extra_brings_it(make):
    pool = make('import json; print(json.dumps(["failed", "No module named sums"]))')
    with pytest.raises(MissingDependency, match=r"No module named sums; pip install 'grouprl\[some\]'"):
        pool.run([["echo", 1]])


def test_a_script_that_ends_at_once_is_not_started_for_ever(make):
    with pytest.raises(RewardError, match=r"ended three times before it was ready"):
        make("raise SystemExit").run([["echo", 1]])


def test_an_interrupt_leaves_no_reply_for_the_next_run(make):
    pool = make()
    pool.run([["echo", 0]])

    def interrupt(signum, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            pool.run([["sleep", 30]])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert pool.run([["echo", "fresh"]]) == [Answer("done", "fresh")]


def test_keys_and_tokens_stay_here(make, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert make().run([["environment", "HF_TOKEN"], ["environment", "PYTHONHASHSEED"]]) == [
        Answer("done", None),
        Answer("done", "0"),
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS holds on Linux")
def test_the_memory_limit_of_the_math_worker(make, tmp_path):
    """Its own limits on a script that allocates: within them it goes on, beyond them it ends, and another starts."""
    source = f"""
    import json, os, sys
    sys.path.insert(0, {str(Path(math_worker.__file__).parent)!r})
    import math_worker
    settings = json.loads(sys.stdin.readline())
    math_worker._limit(settings["memory_limit_bytes"])
    print(json.dumps(["ready"]), flush=True)
    for line in sys.stdin:
        what, size = json.loads(line)
        try:
            if what == "memory":
                size = len(bytearray(size))
            else:
                with open({str(tmp_path / "written")!r}, "wb") as file:
                    size = file.write(bytes(size))
        except MemoryError:
            os._exit(1)
        except OSError as error:
            size = str(error)
        print(json.dumps(size), flush=True)
    """
    pool = make(source)
    asked = [["memory", 1 << 20], ["memory", 1 << 30], ["memory", 1 << 20], ["file", 10]]
    small, large, again, file = pool.run(asked)
    assert (small, large.status, again) == (Answer("done", 1 << 20), "crashed", Answer("done", 1 << 20))
    assert "too large" in file.value
    assert (tmp_path / "written").stat().st_size == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_uses_processes_of_its_own(make):
    pool = make()
    (mine,) = pool.run([["pid", 0]])
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            (theirs,) = pool.run([["pid", 0]])
            pool.close()
            os.write(writing, json.dumps(theirs.value).encode())
        finally:
            os._exit(0)
    os.close(writing)
    theirs = json.loads(os.read(reading, 100))
    os.close(reading)
    os.waitpid(child, 0)
    assert theirs != mine.value
    assert pool.run([["pid", 0]]) == [mine]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize("request_of_math", ['["compare", ["number", "4", "1"], ["latex", "%s"]]'])
@pytest.mark.parametrize("latex", ["\\\\\\\\sqrt{16}", "2^{2^{2^{2^{100}}}}"])
def test_no_process_outlives_a_killed_parent(request_of_math, latex, tmp_path):
    """kill -9 of the parent, its worker idle or at a check that never ends."""
    pytest.importorskip("math_verify")
    program = tmp_path / "parent.py"
    program.write_text(
        textwrap.dedent(f"""
        import json, sys, threading, time
        from pathlib import Path
        from grouprl.tasks import math_worker, worker_pool
        pool = worker_pool.WorkerPool(
            Path(math_worker.__file__), extra="math", processes=1, time_limit_s=3.0, memory_limit_bytes=1 << 30
        )
        pool.run([["compare", ["number", "4", "1"], ["latex", "1+3"]]])
        threading.Thread(target=pool.run, args=([json.loads('{request_of_math % latex}')],), daemon=True).start()
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
