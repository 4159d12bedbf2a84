"""Real gloo processes on this machine: every case runs on all ranks of one world, one after the other.

    results = run([Case("rloo", [{"rewards": …}, {"rewards": …}]), …])        results[case][rank]

A case's result is what the call gave, or the error that it raised. As a script this is one rank.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

TIMEOUT_S = 300
"""For a machine that has much else to do."""


@dataclass(frozen=True)
class Case:
    """A call, with the arguments of each rank, and those that all have."""

    call: str
    shares: Sequence[dict[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)


def run(cases: Sequence[Case]) -> list[list[Any]]:
    """What each case gave on each rank."""
    world = len(cases[0].shares)
    ranks = start(Path(__file__), world, cases=[(case.call, case.shares, case.options) for case in cases])
    return [list(case) for case in zip(*ranks, strict=True)]


def start(script: Path, world: int, *arguments: str, cases: Any = None) -> list[Any]:
    """What each rank of a script wrote into `results<rank>` of the folder that it is given, with its rank, the number
    of ranks and further arguments; `cases` lie there for it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "cases").write_bytes(pickle.dumps(cases))
        processes = [
            subprocess.Popen(
                [sys.executable, str(script), name, str(rank), str(world), *arguments],
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]
        try:
            errors = [process.communicate(timeout=2 * TIMEOUT_S)[1] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.communicate()
        assert not any(process.returncode for process in processes), "\n".join(errors)
        return [pickle.loads((folder / f"results{rank}").read_bytes()) for rank in range(world)]


def main(folder: Path, rank: int, world: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    results = []
    for call, shares, options in pickle.loads((folder / "cases").read_bytes()):
        try:
            results.append(perform(call, shares[rank] | options, dist.group.WORLD))
        except Exception as error:
            results.append(error)
    (folder / f"results{rank}").write_bytes(pickle.dumps(results))
    leave()


def leave() -> None:
    """End this rank when all are done, at once: a thread of gloo's that still holds the last exchange's tensors when
    the interpreter ends aborts the process."""
    import torch.distributed as dist

    dist.barrier()
    os._exit(0)


def perform(call: str, arguments: dict[str, Any], process_group: Any) -> Any:
    """The call; or one that needs more than arguments."""
    import torch.distributed as dist

    import grouprl
    from grouprl import advantages

    if call in ("group_advantages", "group_stats"):
        return getattr(grouprl, call)(**arguments, process_group=process_group)
    if call == "trackers":
        tracker = advantages.spo()
        first = tracker(**arguments, process_group=process_group)
        return first, tracker(**arguments, process_group=process_group), tracker.state_dict()
    if call == "subgroup":
        last_two = dist.new_group([1, 2])
        return grouprl.group_advantages(**arguments, process_group=last_two)
    if call == "lambdas as ids":
        mine = [lambda: 0] if dist.get_rank() == 1 else ["a"]
        return grouprl.group_advantages([1.0], mine, process_group=process_group)
    if call == "no group":
        return grouprl.group_advantages([1.0], process_group="world")
    if call == "own":

        def own(r, ids=None, *, hardness=None, **further):
            return (r * hardness * further.get("factor", 1.0)).cumsum(0)

        advantages.register("own", per_completion=arguments.pop("per_completion", ()))(own)
        try:
            return advantages.get("own")(arguments.pop("rewards"), **arguments, process_group=process_group)
        finally:
            advantages.unregister("own")
    return advantages.get(call)(**arguments, process_group=process_group)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
