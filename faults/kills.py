"""Kills, interrupts, closed terminals, clocks that jump."""

from __future__ import annotations

import os
import pty
import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from faults.fault import check, fault
from faults.place import STEPS, Ended, Place, differences, steps_done, temporaries

SLOWLY = """
import time

def slowly(completions):
    time.sleep(0.3)
    return [sum(c.islower() for c in text) / max(len(text), 1) for text in completions]
"""
"""A reward of a third of a second, so that the run is still going on when it is stopped."""


@fault(
    done="kill -9 at random moments of a run and of its resumptions, 50 times",
    must="every one goes on to the end, equal to the bit to a run that nothing happened to; nothing half written stays",
)
def kill(place: Place) -> str:
    return _killed(place, 3 if place.quick else 50)


@fault(
    done="kill -9 at random moments of a run that draws a step ahead (max_staleness = 1), 25 times",
    must="the same: a checkpoint holds the completions in flight, and every run ends equal to the bit",
)
def kill_overlapped(place: Place) -> str:
    return _killed(place, 2 if place.quick else 25, "--max-staleness", "1")


def _killed(place: Place, kills: int, *more: str) -> str:
    started = time.monotonic()
    whole = place.whole(*more)
    length_s = time.monotonic() - started
    run = place.folder / "killed"
    random_moment = random.Random(0)
    done, runs, torn, at = 0, 0, 0, set()
    while done < kills:
        shutil.rmtree(run, ignore_errors=True)
        runs += 1
        for _ in range(random_moment.randint(1, 3)):
            if (run / "model").exists():  # killed after its end, amid the report
                break
            begun = (run / "config.toml").exists()
            process = place.resume("killed") if begun else place.train("killed", *more)
            step = random_moment.randint(0, STEPS)
            while process.alive() and steps_done(run) < step:
                time.sleep(0.002)
            time.sleep(random_moment.uniform(0, length_s / 2 if step in (0, STEPS) else length_s / STEPS / 2))
            process.kill()
            ended = process.wait()
            if ended.code == -signal.SIGKILL:
                done += 1
                at.add(steps_done(run))
                torn += bool(run.exists() and temporaries(run))
            else:
                check(ended.code == 0, f"a run that was killed before ended with {ended.code}: {ended.error}")
                break
        if not (run / "model").exists():
            begun = (run / "config.toml").exists()
            ended = (place.resume("killed") if begun else place.train("killed", *more)).wait()
            check(ended.code == 0, f"after {done} kills: {ended.error}")
        found = differences(run, whole)
        check(not found, f"after {done} kills the run differs in {', '.join(found)}")
        check(not temporaries(run), f"left: {temporaries(run)}")
    steps = f"after {min(at)} to {max(at)} of {STEPS} steps"
    return f"{done} kills in {runs} runs, {steps}, {torn} of them amid a write; {runs} of {runs} equal"


def _stopped(place: Place, act: Callable[[int], None], *, code: int, name: str) -> Ended:
    """Do something to a run that has made two steps; it ends with this code and goes on as if nothing had been."""
    reward = place.reward("slowly", SLOWLY)
    whole = place.whole(reward=reward)
    run = place.folder / name
    process = place.train(name, reward=reward)
    process.until(lambda: steps_done(run) >= 2)
    act(process.pid)
    ended = process.wait()
    check(ended.code == code, f"exit code {ended.code}, expected {code}: {ended.error}")
    _goes_on(place, name)
    check(not differences(run, whole), f"differs in {differences(run, whole)}")
    return ended


def _goes_on(place: Place, name: str) -> None:
    if steps_done(place.folder / name) < STEPS or not (place.folder / name / "model").exists():
        again = place.resume(name).wait()
        check(again.code == 0, f"resuming: {again.error}")


@fault(
    done="Ctrl-C twice, a hundredth of a second apart, six times at random moments of a step",
    must="it ends with code 130 at once; what is on disk is whole, and goes on equal to the bit",
)
def ctrl_c_twice(place: Place) -> str:
    reward = place.reward("slowly", SLOWLY)
    whole, slowest = place.whole(reward=reward), 0.0
    moments = random.Random(1)
    times = 2 if place.quick else 6
    for number in range(times):
        name = f"stopped-{number}"
        run = place.folder / name
        process = place.train(name, reward=reward)
        process.until(lambda run=run: steps_done(run) >= 1)
        time.sleep(moments.uniform(0, 0.3))
        process.kill(signal.SIGINT)
        time.sleep(0.01)
        process.kill(signal.SIGINT)
        started = time.monotonic()
        ended = process.wait()
        slowest = max(slowest, time.monotonic() - started)
        check(ended.code in (130, -signal.SIGINT), f"exit code {ended.code}: {ended.error}")
        check("Traceback" not in ended.said, ended.said[-400:])
        _goes_on(place, name)
        check(not differences(run, whole), f"differs in {differences(run, whole)}")
    return f"{times} of {times} resumed equal; the slowest end took {slowest:.1f} s"


@fault(
    done="SIGHUP, as a closed terminal sends it, and SIGTERM",
    must="the last whole step is saved, exit code 130, and the run goes on equal to the bit",
)
def hangup(place: Place) -> str:
    for number in (signal.SIGHUP, signal.SIGTERM):
        ended = _stopped(place, lambda pid, number=number: os.kill(pid, number), code=130, name=number.name)
        check("which is saved" in ended.said, f"{number.name}: {ended.error}")
        shutil.rmtree(place.folder / "whole")
    return "both: saved, said how to go on, resumed equal"


@fault(
    done="the terminal of a run goes away: under nohup (SIGHUP ignored), and of one with no SIGHUP sent",
    must="the run goes on to its last step, equal to the bit",
)
def terminal_gone(place: Place) -> str:
    whole = place.whole()
    for name, ignored in (("nohup", True), ("detached", False)):
        ours, theirs = pty.openpty()

        def onto_the_terminal(theirs: int = theirs, ours: int = ours, ignored: bool = ignored) -> None:
            os.close(ours)
            os.dup2(theirs, 1)
            os.dup2(theirs, 2)
            if ignored:
                signal.signal(signal.SIGHUP, signal.SIG_IGN)

        run = place.folder / name
        process = place.train(name, before=onto_the_terminal)
        os.close(theirs)
        os.set_blocking(ours, False)
        process.until(lambda run=run, ours=ours: bool(_drained(ours)) and steps_done(run) >= 2)
        if ignored:
            process.kill(signal.SIGHUP)
        os.close(ours)
        ended = process.wait()
        check(ended.code in (0, 1), f"{name}: exit code {ended.code}: {ended.error}")
        check(not differences(run, whole), f"{name}: {ended.code}, differs in {differences(run, whole)}")
    return "both went on to the last step, equal"


def _drained(terminal: int) -> bool:
    """Read what stands in the terminal, as a terminal's window does."""
    with suppress(OSError):
        while os.read(terminal, 1 << 16):
            pass
    return True


@fault(
    done="the wall clock jumps by years and back; all clocks jump by an hour in a step, as when a laptop sleeps",
    must="the run is equal to the bit; every time in the log is finite and not negative; the time left stays sane",
)
def clock_jumps(place: Place) -> str:
    whole = place.whole()

    def wall_clock() -> None:
        real, calls = time.time, [0]

        def jumping() -> float:
            calls[0] += 1
            return real() + (-1) ** calls[0] * 1e8

        time.time = jumping

    def sleep() -> None:
        from grouprl.training.trainer import Trainer

        step, offset = Trainer._step, [0.0]
        for name in ("perf_counter", "monotonic"):
            real = getattr(time, name)
            setattr(time, name, lambda real=real: real() + offset[0])

        def sleeping(self: Trainer) -> None:
            from grouprl.training import clock

            if self.state.step == 2:
                made = clock.Clock.__init__

                def late(one: clock.Clock) -> None:
                    made(one)
                    offset[0] += 3600

                clock.Clock.__init__ = late
                try:
                    step(self)
                finally:
                    clock.Clock.__init__ = made
            else:
                step(self)

        Trainer._step = sleeping

    seen = {}
    for name, before in (("jumped", wall_clock), ("slept", sleep)):
        ended = place.train(name, before=before).wait()
        check(ended.code == 0, f"{name}: {ended.error}")
        check(
            not differences(place.folder / name, whole),
            f"differs in {differences(place.folder / name, whole)}",
        )
        seen[name] = place.ask(lambda name=name: _times(place, name))
        check(seen[name]["lowest"] >= 0, f"{name}: a time of {seen[name]['lowest']}")
        last = next(line for line in ended.said.splitlines() if line.strip().startswith(f"{STEPS - 1}/"))
        check("h" not in last.split()[-1], f"{name}: time left after a step of an hour: {last.split()[-1]}")
    check(seen["slept"]["longest"] > 3599, f"the longest step took {seen['slept']['longest']} s")
    return (
        f"both equal; shortest time {min(one['lowest'] for one in seen.values()):.1e} s; a step of "
        f"{seen['slept']['longest']:.0f} s in the log, and the time left two steps later without it"
    )


def _times(place: Place, name: str) -> dict[str, float]:
    import json
    import math

    lines = [json.loads(line) for line in (place.folder / name / "metrics.jsonl").read_text().splitlines()]
    values = [v for line in lines for k, v in line.items() if k.startswith("seconds") or k.endswith("per_s")]
    check(all(isinstance(v, int | float) and math.isfinite(v) for v in values), f"times {values}")
    seconds = [v for line in lines for k, v in line.items() if k.startswith("seconds")]
    check(min(values) >= 0, f"a negative time or rate: {min(values)}")
    return {"lowest": min(seconds), "longest": max(line["seconds_step"] for line in lines)}
