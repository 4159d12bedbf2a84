"""Several runs at once, each in a process of its own: started, watched, stopped and waited for."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

import torch
from results_run import Run, check_same, command, finish, note_time

from grouprl.training.interrupts import SIGNALS
from grouprl.training.memory import GIB, free_memory

REPOSITORY = Path(__file__).parent.parent
GIB_A_RUN = 5
"""More than a run takes at its peak (3.7 GiB), but for one with a critic of its own (6.5)."""
PLANNED_THREADS = 2
"""The plan's minutes are of runs with so many threads."""
LOOK_EVERY_S = 0.5


class Stopped(Exception):  # noqa: N818 -- as KeyboardInterrupt, it is no error
    """A signal asked for the end; every run has been saved."""


@dataclass(frozen=True)
class Jobs:
    """How many runs go at once, and how many threads each has."""

    at_once: int
    threads: int

    @classmethod
    def of_this_machine(cls, at_once: int | None = None) -> Jobs:
        """So many, or as many as there is room for; the cores are shared out, unless OMP_NUM_THREADS is set."""
        at_once = room() if at_once is None else at_once
        given = os.environ.get("OMP_NUM_THREADS", "")
        return cls(at_once, int(given) if given.isdecimal() and int(given) else max(1, cores() // at_once))

    def __str__(self) -> str:
        runs = f"{self.at_once} at once" if self.at_once > 1 else "one after the other"
        return f"{runs}, each with {self.threads} thread{'s' * (self.threads != 1)}"


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def room() -> int:
    """Runs for which there are cores and free memory: at least 1."""
    return max(1, min(cores(), free_memory(torch.device("cpu")) // (GIB_A_RUN * GIB)))


class Pace:
    """How long things take here, against the plan."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self.planned = self.took = 0.0

    def add(self, planned: float, took: float) -> None:
        self.planned, self.took = self.planned + planned, self.took + took

    @property
    def factor(self) -> float:
        """Of a run's minutes over its planned ones. Until one is finished: no thread is wasted."""
        if self.planned:
            return self.took / self.planned
        return max(1.0, PLANNED_THREADS / self.jobs.threads)

    def estimate(self, planned: Sequence[float]) -> str:
        """What runs of so many planned minutes take together, as text: their sum over the jobs, or the longest."""
        minutes = max(sum(planned) / self.jobs.at_once, max(planned, default=0.0)) * self.factor
        return f"about {duration(60 * minutes)}"


@dataclass
class Working:
    """A run, and the process that works at it."""

    run: Run
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    began: float
    steps_before: int

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def planned_minutes_left(self) -> float:
        return self.run.planned.minutes * max(0.0, 1 - self.run.steps_done / self.run.config.steps)


class Signals:
    """While active, what would end this process (Ctrl-C, SIGTERM, a closed terminal) is noted, and nothing else."""

    arrived = False

    def __enter__(self) -> Signals:
        kept = {n: signal.getsignal(n) for n in SIGNALS}
        self._previous = {n: handler for n, handler in kept.items() if handler != signal.SIG_IGN}  # nohup
        for number in self._previous:
            signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.arrived = True


def make(runs: Sequence[Run], jobs: Jobs) -> list[str]:
    """Run what is not finished, `jobs` at once, in the order given. Returns the labels of those that failed.

    Raises:
        RunError: A folder holds another run than the plan's; nothing is started.
        Stopped: A signal came. Every run got one SIGINT, saved the step that it had done, and was waited for.
    """
    for run in runs:
        check_same(run)
    pending = deque(run for run in runs if not run.done)
    print(f"{len(runs) - len(pending)} of {len(runs)} runs are finished", flush=True)
    if pending:
        print(f"{len(pending)} are to be made, {jobs}", flush=True)
    pace, failed = Pace(jobs), []
    working: list[Working] = []
    with Signals() as signals, _ended_in_any_case(working, jobs):
        while pending or working:
            if signals.arrived:
                raise Stopped
            while pending and len(working) < jobs.at_once:
                run = pending.popleft()
                left = [w.planned_minutes_left for w in working] + [
                    r.planned.minutes for r in (run, *pending)
                ]
                _say(f"{run.label}: to step {run.config.steps}; all that is left: {pace.estimate(left)}")
                if run.trained:  # stopped between its end and its mark
                    finish(run)
                else:
                    working.append(start(run, jobs))
            time.sleep(LOOK_EVERY_S)
            for work in [w for w in working if w.process.poll() is not None]:
                working.remove(work)
                if ended(work, jobs, pace):
                    finish(work.run)
                    _say(f"{work.run.label}: done in {duration(work.seconds)}")
                else:
                    failed.append(work.run.label)
            _show(working, pending, pace)
    return failed


def start(run: Run, jobs: Jobs) -> Working:
    """Train, or go on with it, in a process of its own."""
    arguments = command(run)
    log = run.log.open("ab")
    process = subprocess.Popen(
        arguments,
        cwd=REPOSITORY,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": str(jobs.threads)},
        process_group=0,  # Ctrl-C is passed on, once
    )
    return Working(run, process, log, time.monotonic(), run.steps_done)


def ended(work: Working, jobs: Jobs, pace: Pace) -> bool:
    """Note what a process took that has come to its end. Whether it did what it was to."""
    work.log.close()
    note_time(work.run, seconds=work.seconds, threads=jobs.threads, jobs=jobs.at_once)
    if code := work.process.returncode:
        tail = work.run.log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
        _clear()
        print(f"{work.run.label}: exit code {code}; {work.run.log}:", *tail, sep="\n  ", file=sys.stderr)
        return False
    if work.steps_before == 0:
        pace.add(work.run.planned.minutes, work.seconds / 60)
    return True


@contextmanager
def _ended_in_any_case(working: Sequence[Working], jobs: Jobs) -> Iterator[None]:
    """No process outlives this: each one left gets one SIGINT, upon which it saves, and is waited for."""
    try:
        yield
    finally:
        running = [work for work in working if work.process.poll() is None]
        if running:
            _say(f"stopping; waiting until saved: {', '.join(work.run.label for work in running)}")
        for work in running:
            work.process.send_signal(signal.SIGINT)
        for work in working:
            work.process.wait()
            work.log.close()
            note_time(work.run, seconds=work.seconds, threads=jobs.threads, jobs=jobs.at_once)


def duration(seconds: float) -> str:
    """
    >>> duration(40), duration(3700)
    ('1 min', '1 h 02 min')
    """
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{max(minutes, 1)} min"


def _say(line: str) -> None:
    _clear()
    print(line, flush=True)


def _show(working: Sequence[Working], pending: Sequence[Run], pace: Pace) -> None:
    """One line that is written over, where there is a terminal: how far each run is."""
    if not working or not sys.stdout.isatty():
        return
    left = pace.estimate([w.planned_minutes_left for w in working] + [r.planned.minutes for r in pending])
    runs = " · ".join(f"{w.run.label} {w.run.steps_done}/{w.run.config.steps}" for w in working)
    width = shutil.get_terminal_size().columns
    print(f"\r{f'  left: {left}; {runs}'[: width - 1]:{width - 1}}", end="", flush=True)


def _clear() -> None:
    if sys.stdout.isatty():
        print("\r\033[K", end="", flush=True)
