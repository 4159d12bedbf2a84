"""`make results` with several runs at once: how the machine is shared out, what a stop leaves, what the marks say."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny

ROOT = Path(__file__).parent.parent
GIB = 2**30


# How the machine is shared out


@pytest.mark.parametrize(
    ("cores", "free_gib", "asked", "expected"),
    [
        (8, 64, None, (8, 1)),
        (8, 16, None, (3, 2)),  # three times 5 GiB; each has two of the eight cores
        (2, 3, None, (1, 2)),
        (1, 64, None, (1, 1)),
        (2, 64, 1, (1, 2)),
        (2, 64, 5, (5, 1)),
    ],
)
def test_cores_and_memory_are_shared_out(scripts, monkeypatch, cores, free_gib, asked, expected):
    module = scripts("results_jobs")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(module, "cores", lambda: cores)
    monkeypatch.setattr(module, "free_memory", lambda device: free_gib * GIB)
    jobs = module.Jobs.of_this_machine(asked)
    assert (jobs.at_once, jobs.threads) == expected


def test_the_cores_are_those_that_may_be_used_and_ones_own_threads_hold(scripts, monkeypatch):
    module = scripts("results_jobs")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5, 7}, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert module.cores() == 3
    assert module.Jobs.of_this_machine(3).threads == 4
    for nothing in ("", "4,2", "0"):  # nested levels are OpenMP's affair, not a number of threads
        monkeypatch.setenv("OMP_NUM_THREADS", nothing)
        assert module.Jobs.of_this_machine(1).threads == 3


def test_the_estimate_divides_by_jobs_but_is_no_shorter_than_the_longest_run(scripts):
    module = scripts("results_jobs")
    pace = module.Pace(module.Jobs(2, threads=2))
    assert pace.estimate([100, 60, 40]) == "about 1 h 40 min"
    assert pace.estimate([100, 10]) == "about 1 h 40 min"
    pace.add(planned=10, took=15)
    assert pace.estimate([100, 60, 40]) == "about 2 h 30 min"
    assert module.Pace(module.Jobs(2, threads=1)).estimate([30, 30]) == "about 1 h 00 min"
    assert module.Pace(module.Jobs(1, threads=2)).estimate([]) == "about 1 min"


def test_no_job_is_refused(scripts, tmp_path, capsys):
    assert scripts("results").main(["--root", str(tmp_path / "none"), "--jobs", "0"]) == 2
    assert "--jobs 0: expected at least 1; leave it out" in capsys.readouterr().err


# What a stop leaves


def until(condition, process, timeout_s=120):
    end = time.monotonic() + timeout_s
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)


def test_every_run_is_saved_on_a_signal_and_goes_on(tmp_path):
    model = tiny.save(tmp_path / "tiny", max_position_embeddings=1024)
    root, steps = tmp_path / "runs", 24
    names = ("add-grpo", "add-rloo")
    folders = [root / name / "seed-0" for name in names]
    command = [sys.executable, "-u", str(ROOT / "benchmarks" / "results.py"), "--root", str(root)]
    command += ["--model", str(model), "--steps", str(steps), "--seeds", "1", "--only", *names, "--jobs", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}

    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        until(lambda: all((f / "metrics.jsonl").exists() for f in folders), process)
    finally:
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "2 are to be made, 2 at once, each with 1 thread" in said
    stopped = set()  # on a busy machine one may be done before the other has begun
    for name, folder in zip(names, folders, strict=True):
        done = len((folder / "metrics.jsonl").read_text().splitlines())
        if done < steps:
            stopped.add(folder)
            assert f"{name}/seed-0" in said.partition("waiting until saved: ")[2].splitlines()[0]
            assert (folder / "checkpoints" / f"step_{done:05d}").is_dir()
            assert not (folder / "finished.json").exists()
        log = folder.with_name("seed-0.log").read_text()
        assert "Traceback" not in log
    assert stopped

    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    found = json.loads((root / "results.json").read_text())
    for name, folder in zip(names, folders, strict=True):
        assert len((folder / "metrics.jsonl").read_text().splitlines()) == steps
        if folder not in stopped:
            continue
        assert f"{name}/seed-0: done in" in ended.stdout
        times = [json.loads(line) for line in folder.with_name("seed-0.times.jsonl").read_text().splitlines()]
        assert [(t["threads"], t["jobs"]) for t in times] == [(1, 2), (1, 2)]
        mark = json.loads((folder / "finished.json").read_text())
        assert mark["minutes"] == pytest.approx(sum(t["minutes"] for t in times), abs=2e-3)
        assert mark["core_minutes"] == mark["minutes"]
        assert "1 threads" in mark["machine"]
        run = found["runs"][name]["seeds"]["0"]
        assert (run["threads"], run["jobs"]) == (1, 2)
        assert run["wall_minutes"] > run["minutes"]  # loading is in it


# What the marks say

OLD = {"machine": "a processor, 2 cores, 1 threads; torch 2.13.0", "model": "m"}
NEW = {
    "machine": "a processor, 8 cores, 2 threads; torch 2.13.0",
    "model": "m",
    "threads": 2,
    "jobs": 4,
    "minutes": 15.0,
    "core_minutes": 30.0,
}


def test_a_mark_of_machine_and_model_alone_is_read(scripts):
    """Such a run was the only one at its time; what it took besides steps and evaluations is not known."""
    found = scripts("results_summary").marked(OLD, 12.0)
    assert found == OLD | {"threads": 1, "jobs": 1, "wall_minutes": None, "core_minutes": 12.0}
    unknown = scripts("results_summary").marked({"machine": "NVIDIA H200; torch 2.13.0", "model": "m"}, 12.0)
    assert (unknown["threads"], unknown["core_minutes"]) == (None, None)


def test_a_mark_is_carried_through_unless_a_kill_took_minutes_from_it(scripts):
    found = scripts("results_summary").marked(NEW, 12.0)
    assert (found["threads"], found["jobs"]) == (2, 4)
    assert (found["wall_minutes"], found["core_minutes"]) == (15.0, 30.0)
    killed = scripts("results_summary").marked(NEW, 20.0)
    assert (killed["wall_minutes"], killed["core_minutes"]) == (None, 40.0)


def test_the_page_sums_up_one_core_time(scripts):
    """2 × 30 core-minutes and 12 of a run of the first kind: 1.2 hours."""
    marked = scripts("results_summary").marked
    seeds = dict(enumerate([marked(NEW, 12.0), marked(NEW, 12.0), marked(OLD, 12.0)]))
    found = {"command": "make results", "runs": {"a": {"seeds": seeds, "seeds_planned": 3}}}
    said = scripts("results_page").state(found)
    assert said.startswith(
        "3 runs of 1 configurations (3 are planned of these), 1.2 hours of one-core time ("
    )
    assert "with 1 thread and 1 run at once or 2 threads and 4 runs at once" in said
    assert "steps and evaluations alone for 1 of them" in said
    whole = {"command": "make results", "runs": {"a": {"seeds": {0: seeds[0]}, "seeds_planned": 1}}}
    assert "0.5 hours of one-core time (with 2 threads and 4 runs at once). " in scripts(
        "results_page"
    ).state(whole)
