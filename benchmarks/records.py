"""`records.read` against polars' own plain scan of the same file: rows a second and peak memory.

    python benchmarks/records.py [--rows 400000] [--turns 3]

Summarised is every step: rows, mean and spread of the reward. Each measurement is a process of its own, the sides take
turns, and the ratio is the median over the turns. With --rows 10000000 the files take about 4 GB in a temporary
folder; peak memory should be that of the small ones.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polars as pl

from grouprl import records

GROUP, STEP = 8, 1024
CHUNK = 1 << 18
QUESTION = "A train leaves at noon and travels {} miles at {} miles an hour. When does it arrive?"
ANSWER = "It takes {} divided by {} hours, so it arrives {} hours after noon.\n\nThe answer is {}."


def rows(first: int, count: int) -> pl.DataFrame:
    """Rollouts as a framework without group ids would hold them: each prompt eight times."""
    index = pl.int_range(first, first + count, eager=True)
    group, draw = index // GROUP, (index * 2654435761) % 1000
    return pl.DataFrame({"i": index, "group": group, "draw": draw}).select(
        step=pl.col("i") // STEP,
        group_id=pl.format("{}/{}", pl.col("i") // STEP, "group"),
        prompt=pl.format(QUESTION, "group", pl.col("group") % 90),
        completion=pl.format(ANSWER, "group", pl.col("group") % 90, "draw", "draw"),
        reward=(pl.col("draw") < 400).cast(pl.Float64),
        acc=pl.col("draw") < 400,
    )


def write_parquet(path: Path, count: int) -> None:
    frame = pl.concat([rows(first, min(CHUNK, count - first)).lazy() for first in range(0, count, CHUNK)])
    frame.select(
        schema_version=pl.lit(1, pl.Int64),
        step="step",
        group_id="group_id",
        sample_index=pl.lit(0, pl.Int64),
        prompt="prompt",
        completion="completion",
        reward="reward",
        scored=pl.lit(True),
        advantage=pl.lit(0.0),
    ).sink_parquet(path, row_group_size=CHUNK // 2)


def write_verl(path: Path, count: int) -> None:
    with path.open("wb") as file:
        for first in range(0, count, CHUNK):
            frame = rows(first, min(CHUNK, count - first))
            frame.select(
                input="prompt", output="completion", gts=pl.lit("4"), score="reward", step="step", acc="acc"
            ).write_ndjson(file)


FILES = {"grouprl.parquet": write_parquet, "verl.jsonl": write_verl}


def summary(frame: pl.LazyFrame, reward: str) -> pl.DataFrame:
    by_step = frame.group_by("step").agg(
        pl.len().alias("rows"), pl.col(reward).mean(), pl.col(reward).std().alias("std")
    )
    return by_step.collect(engine="streaming")


def groups(frame: pl.LazyFrame) -> pl.DataFrame:
    """Needs the ids, which are rebuilt from the prompts; the set of them is counted without holding it."""
    return frame.select(pl.col("group_id").approx_n_unique(), pl.len().alias("rows")).collect(
        engine="streaming"
    )


def measure(side: str, path: Path) -> dict[str, float]:
    start, start_cpu = time.perf_counter(), time.process_time()
    if side == "plain":
        scan = pl.scan_parquet(path) if path.suffix == ".parquet" else pl.scan_ndjson(path)
        counted = summary(scan, "reward" if path.suffix == ".parquet" else "score")["rows"].sum()
    elif side == "read":
        counted = summary(records.read(path), "reward")["rows"].sum()
    else:
        counted = groups(records.read(path))["rows"].item()
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    return {"rows": counted, "seconds": seconds, "cpu_seconds": cpu_seconds, "peak_mib": peak_mib()}


def peak_mib() -> float:
    """Of this process since it began: getrusage counts what its parent held at the fork, too."""
    status = Path("/proc/self/status")
    if not status.exists():
        return float("nan")
    return (
        next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        / 1024
    )


def in_process(side: str, path: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--side", side, "--file", str(path)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--side", choices=("plain", "read", "groups"))
    parser.add_argument("--file", type=Path)
    given = parser.parse_args()
    if given.side:
        print(json.dumps(measure(given.side, given.file)))
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"polars {pl.__version__}, {platform.machine()}, {cores} cores, {given.rows:,} rows")
    with tempfile.TemporaryDirectory() as folder:
        for name, write in FILES.items():
            write(path := Path(folder) / name, given.rows)
            turns = [
                {side: in_process(side, path) for side in ("plain", "read", "groups")}
                for _ in range(given.turns)
            ]
            print(f"{name}, {path.stat().st_size / 2**20:.0f} MiB")
            for side, what in (
                ("plain", "polars' plain scan"),
                ("read", "records.read"),
                ("groups", "records.read, with group ids"),
            ):
                rate = statistics.median(turn[side]["rows"] / turn[side]["seconds"] for turn in turns)
                ratio, of_cpu = (
                    statistics.median(turn["plain"][clock] / turn[side][clock] for turn in turns)
                    for clock in ("seconds", "cpu_seconds")
                )
                peak = max(turn[side]["peak_mib"] for turn in turns)
                print(
                    f"  {what:30} {rate:12,.0f} rows/s  {ratio:5.2f} of the plain scan's"
                    f" ({of_cpu:.2f} by processor time)  peak {peak:6.0f} MiB"
                )
            path.unlink()


if __name__ == "__main__":
    main()
