"""A day's run in small."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

from faults.fault import check, fault
from faults.place import Place

WARM = 0.3
"""Share of the steps before which caches fill."""


def _own() -> tuple[float, int, int, int]:
    """Memory in MiB, open files, threads, child processes."""
    status = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line
    )
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    memory = float(status["VmRSS"].split()[0]) / 1024
    return memory, len(os.listdir("/proc/self/fd")), int(status["Threads"]), len(children)


@fault(
    done="500 steps with a checkpoint every 10 and a held-out evaluation every 50, measured within the process",
    must="memory's slope is within its noise; open files, threads and processes are as many at the end as at the start",
)
def long_run(place: Place) -> str:
    steps = 30 if place.quick else 500

    def run() -> list[tuple[float, int, int, int]]:
        from grouprl.training import Listener, train

        seen = []

        class Watching(Listener):
            def stepped(self, metrics: object, rows: object) -> None:
                seen.append(_own())

        train(
            {
                "model": str(place.model),
                "output_dir": str(place.folder / "long"),
                "reward": [f"{place.folder / 'lowercase.py'}:lowercase"],
                "device": "cpu",
                "steps": steps,
                "rollout": {"group_size": 4, "prompts_per_step": 3, "max_new_tokens": 6},
                "evaluation": {"eval_prompts": 3, "eval_samples": 2, "eval_every": 50},
                "checkpoint": {"checkpoint_every": 10, "checkpoint_keep": 2},
            },
            listener=Watching(),
        )
        return seen

    seen = place.ask(run, limit_s=3600)
    settled = seen[int(steps * WARM) :]
    memory, files, threads, children = map(list, zip(*settled, strict=True))
    slope, error = _slope(memory)
    check(max(files) == min(files), f"open files from {min(files)} to {max(files)}")
    check(max(threads) == min(threads), f"threads from {min(threads)} to {max(threads)}")
    check(max(children) == min(children), f"processes from {min(children)} to {max(children)}")
    rise = memory[-1] - memory[0]
    check(
        place.quick or slope <= 2 * error or slope * steps < 4,
        f"memory rises by {slope * 1000:.1f} KiB a step",
    )
    return (
        f"{steps} steps: {memory[0]:.0f} MiB at step {steps - len(settled) + 1}, {memory[-1]:.0f} at the last "
        f"({rise:+.1f}; slope {1024 * slope:+.2f} ± {1024 * error:.2f} KiB a step), {files[-1]} files, "
        f"{threads[-1]} threads, {children[-1]} processes throughout"
    )


def _slope(values: list[float]) -> tuple[float, float]:
    """Least-squares slope of means over ten blocks, a step, and its standard error: blocks are nearly independent."""
    size = max(1, len(values) // 10)
    blocks = [
        statistics.fmean(values[i : i + size]) for i in range(0, size * 10, size) if values[i : i + size]
    ]
    places = [size * i for i in range(len(blocks))]
    middle, mean = statistics.fmean(places), statistics.fmean(blocks)
    squares = sum((x - middle) ** 2 for x in places)
    slope = sum((x - middle) * (y - mean) for x, y in zip(places, blocks, strict=True)) / squares
    residual = sum((y - mean - slope * (x - middle)) ** 2 for x, y in zip(places, blocks, strict=True))
    return slope, (residual / max(1, len(blocks) - 2) / squares) ** 0.5


@fault(
    done="the records of a run read, over and over, while it writes them: records.read, read_jsonl, grouprl report",
    must="every reading succeeds, never with fewer rows than the one before",
)
def read_while_written(place: Place) -> str:
    run = place.folder / "written"

    def read() -> dict[str, int]:
        from grouprl.records import read, read_jsonl
        from grouprl.report import write_report

        times, rows, lines = 0, 0, 0
        while not (run / "rollouts").exists() or not list((run / "rollouts").glob("*.parquet")):
            time.sleep(0.01)
        while not (run / "model").exists():
            now = read(run).collect().height
            assert now >= rows, f"{now} rows after {rows}"
            logged = len(read_jsonl(run / "metrics.jsonl"))
            assert logged >= lines, f"{logged} lines after {lines}"
            if times % 10 == 0:
                write_report(run, run.parent / "page.html")
            times, rows, lines = times + 1, now, logged
        return {"times": times, "rows": rows}

    process = place.train("written", "--steps", "12" if place.quick else "60")
    seen = place.ask(read)
    ended = process.wait()
    check(ended.code == 0, ended.error)
    check(seen["times"] > 2, f"read {seen['times']} times only")
    return f"read {seen['times']} times, up to {seen['rows']} rows: each time whole"
