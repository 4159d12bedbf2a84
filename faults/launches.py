"""Runs on two ranks under torchrun: a rank that dies, and two launches in one folder."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from faults.fault import check, fault
from faults.place import (
    STEPS,
    Ended,
    Place,
    Process,
    contents,
    differences,
    moments_apart,
    steps_done,
    temporaries,
)

END_S = 60.0
"""torchrun and all ranks have ended so long after one of them died: torchrun itself gives the others 30 s."""
DEAD = "Signal 9 (SIGKILL) received by PID"
"""How torchrun names a rank that was killed."""


@fault(
    done="kill -9 of either rank of a run under torchrun at random moments of it and of its resumptions, 10 times, "
    "ddp and fsdp",
    must="torchrun and all ranks end, with one line that says why; no record or checkpoint is lost; on two ranks it "
    "goes on equal to the bit to a run on two ranks that nothing happened to; on one process it goes on as well",
)
def rank_dies(place: Place) -> str:
    moments = random.Random(0)
    seen: list[str] = []
    slowest = 0.0
    for strategy in ("ddp", "fsdp"):
        ended = place.train_on_ranks(f"whole-{strategy}", "--strategy", strategy).wait()
        check(ended.code == 0, f"{strategy} without a fault: {ended.said[-300:]}")
        whole, run = place.folder / f"whole-{strategy}", place.folder / f"killed-{strategy}"
        kills, runs, at, dead, named = 0, 0, set(), set(), 0
        while kills < (1 if place.quick else 5):
            shutil.rmtree(run, ignore_errors=True)
            runs += 1
            for _ in range(1 if place.quick else moments.randint(1, 3)):
                if _over(run):  # the last kill fell behind its end
                    break
                process = _start(place, run, strategy)
                rank, ended, took_s = _kill_a_rank(place, process, run, moments)
                if ended.code == 0:  # the run was over first
                    break
                kills += 1
                slowest = max(slowest, took_s)
                at.add(steps_done(run))
                dead.add(rank)
                named += _said_once(ended)
            if (
                kills
                and strategy == "fsdp"
                and not (place.folder / "alone").exists()
                and 0 < steps_done(run) < STEPS
            ):
                shutil.copytree(run, place.folder / "alone")
            if not _over(run):
                ended = _start(place, run, strategy).wait()
                check(ended.code == 0, f"{strategy}, after {kills} kills: {ended.said[-600:]}")
            found = differences(run, whole)
            check(
                not found,
                f"{strategy}, after {kills} kills: differs in {', '.join(found)}; moments: {moments_apart(run, whole)}",
            )
            check(not temporaries(run), f"left: {temporaries(run)}")
        ranks = " and ".join(str(rank) for rank in sorted(dead))
        seen.append(
            f"{strategy}: {kills} kills of rank {ranks} in {runs} runs, after {min(at)} to {max(at)} of {STEPS} steps, "
            f"{named} told by another rank too; {runs} of {runs} equal"
        )
    alone = _alone(place, place.folder / "whole-fsdp")
    return f"{'; '.join(seen)}; all had ended {slowest:.1f} s after a kill at most; {alone}"


def _start(place: Place, run: Path, strategy: str) -> Process:
    """Begin a run, or go on with it."""
    if (run / "config.toml").exists():
        return place.resume_on_ranks(run.name)
    return place.train_on_ranks(run.name, "--strategy", strategy)


def _over(run: Path) -> bool:
    """Whether all steps are done and the final model is there: such a run cannot be gone on with."""
    return steps_done(run) >= STEPS and (run / "model").exists()


def _kill_a_rank(
    place: Place, process: Process, run: Path, moments: random.Random
) -> tuple[int, Ended, float]:
    """Returns the rank, how torchrun ended, and how long after; all must have ended, and nothing be lost."""
    process.until(lambda: len(_ranks(place)) == 2)
    first = steps_done(run)
    step = moments.randint(min(first, STEPS - 1), STEPS - 1)
    if step == 0:
        time.sleep(moments.uniform(0, 8))  # while it imports, meets the other rank, evaluates, draws
    else:
        process.until(lambda: steps_done(run) >= step or not _ranks(place))
        time.sleep(moments.uniform(0, 0.5 if step > first else 8))  # a resumption imports first
    rank = moments.randrange(2)
    before = _kept(place, run)
    pid = _ranks(place).get(rank)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    started = time.monotonic()
    ended = process.wait(END_S)
    took_s = time.monotonic() - started
    left = place.launched()
    check(not left, f"processes left after torchrun's end: {left}")
    after = _kept(place, run)
    if before is not None:
        check(after is not None, "the records cannot be read")
        check(after["metrics"][: len(before["metrics"])] == before["metrics"], "metrics were lost")
        check(after["rollouts"] >= before["rollouts"], f"rollouts were lost: {before} {after}")
        newest = [max(kept["checkpoints"], default=0) for kept in (before, after)]
        check(newest[1] >= newest[0], f"checkpoints were lost: {newest}")
    return rank, ended, took_s


def _ranks(place: Place) -> dict[int, int]:
    """The process of each rank: the oldest, for it may have started others."""
    launched = sorted(place.launched().items(), reverse=True)
    return {rank: pid for pid, rank in launched if rank is not None}


def _kept(place: Place, run: Path) -> dict[str, Any] | None:
    """What can be read of a run; None where it has not begun."""
    if not (run / "config.toml").exists():
        return None

    def read() -> dict[str, Any]:
        from grouprl.errors import RunError
        from grouprl.records import RunFolder

        folder = RunFolder.open(run)
        while True:
            steps = folder.rollout_steps()
            with suppress(RunError):  # a resumption has just cut off what lies behind its checkpoint
                rows = folder.rollouts(steps).collect().height if steps else 0
                return {"metrics": folder.metrics(), "rollouts": rows, "checkpoints": folder.checkpoints()}

    kept: dict[str, Any] = place.ask(read)
    return kept


def _said_once(ended: Ended) -> bool:
    """Whether the other rank said something too; torchrun has named the dead one."""
    check(ended.code == 1, f"torchrun ended with {ended.code}: {ended.said[-300:]}")
    lines = [line for line in ended.said.splitlines() if "grouprl: " in line]
    check(DEAD in ended.said, f"the dead rank is not named: {lines or ended.said[-600:]}")
    check(len(lines) <= 1, f"said more than once: {lines}")
    check(all("the connection to another rank broke" in line for line in lines), f"said: {lines}")
    _no_traceback_of_ours(ended)
    return bool(lines)


def _no_traceback_of_ours(ended: Ended) -> None:
    """torchrun prints its own."""
    frames = [line for line in ended.said.splitlines() if 'File "' in line and "grouprl" in line]
    check(not frames, f"a traceback: {frames}")


def _alone(place: Place, whole: Path) -> str:
    """The copy of a run that a rank's death ended goes on on one process, as near as rounding allows."""
    run = place.folder / "alone"
    if not run.exists():
        return "none was far enough to go on on one process"
    begun = steps_done(run)
    ended = place.resume("alone").wait()
    check(ended.code == 0, f"on one process: {ended.error}")
    check(steps_done(run) == STEPS, f"on one process: {steps_done(run)} steps")

    def apart() -> float:
        from safetensors.torch import load_file

        mine, theirs = (load_file(one / "model" / "model.safetensors") for one in (run, whole))
        return max((mine[name] - weight).abs().max().item() for name, weight in theirs.items())

    distance = place.ask(apart)
    check(distance < 1e-4, f"on one process weights are {distance:.1e} apart")
    return f"from step {begun} on on one process: weights within {distance:.0e}"


@fault(
    done="a second torchrun, and one with --resume, in the folder of a run that trains on two ranks",
    must="both are refused on all ranks, with one line that names the holder; the first is not disturbed",
)
def two_launches(place: Place) -> str:
    ended = place.train_on_ranks("whole").wait()
    check(ended.code == 0, f"without a fault: {ended.said[-300:]}")
    run = place.folder / "shared"
    first = place.train_on_ranks("shared")
    first.until(lambda: steps_done(run) >= 1)
    holders = place.launched()
    for pid, rank in holders.items():
        if rank is not None:
            os.kill(pid, signal.SIGSTOP)  # so that it is still training when the others come
    before = contents(run)
    for process in (place.train_on_ranks("shared"), place.resume_on_ranks("shared")):
        ended = process.wait(END_S)
        lines = [line for line in ended.said.splitlines() if "grouprl: " in line]
        check(ended.code == 1, f"exit code {ended.code}: {ended.said[-300:]}")
        check(len(lines) == 1, f"not said once: {lines}")
        check(any(str(pid) in lines[0] for pid in holders) or "already" in lines[0], f"said: {lines[0]}")
        _no_traceback_of_ours(ended)
    check(place.launched().keys() == holders.keys(), "processes left of those that were refused")
    check(contents(run) == before, "a launch that was refused changed something")
    for pid, rank in holders.items():
        if rank is not None:
            os.kill(pid, signal.SIGCONT)
    ended = first.wait()
    check(ended.code == 0, ended.said[-300:])
    found = differences(run, place.folder / "whole")
    check(not found, f"differs in {found}")
    return "both refused, said once, nothing changed, the first ended equal"
