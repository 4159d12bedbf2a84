"""tinker-cookbook: the scene as trajectory groups, through its own serialisation and its store."""

from __future__ import annotations

import sys
from pathlib import Path

import tinker
from adapters.interface import skip_package_init

skip_package_init("tinker_cookbook", "tinker_cookbook.rl", "tinker_cookbook.stores")

from tinker_cookbook.completers import TokensWithLogprobs  # noqa: E402
from tinker_cookbook.rl.rollout_logging import serialize_rollout_summaries  # noqa: E402
from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup, Transition  # noqa: E402
from tinker_cookbook.stores.storage import LocalStorage  # noqa: E402
from tinker_cookbook.stores.training_store import TrainingRunStore  # noqa: E402

sys.path.append(str(Path(__file__).parents[2] / "tests"))
from rollout_files import GROUP_SIZE, STEPS, Row, of  # noqa: E402

DISTRIBUTION = "tinker-cookbook"
PATH = (
    "tinker_cookbook.rl.rollout_logging.serialize_rollout_summaries, .stores.training_store.TrainingRunStore"
)


def write(folder: Path) -> dict[str, str]:
    store = TrainingRunStore(LocalStorage(folder))
    for step in STEPS:
        rows = of(step)
        groups = [_group(rows[first : first + GROUP_SIZE]) for first in range(0, len(rows), GROUP_SIZE)]
        records = serialize_rollout_summaries(
            split="train",
            iteration=step,
            trajectory_groups_P=groups,
            taglist_P=[["sums"]] * len(groups),
            sampling_client_steps_P=[step] * len(groups),
        )
        store.write_rollouts(step, records)
    return {"": PATH}


def _group(rows: list[Row]) -> TrajectoryGroup:
    """A trajectory of one turn each; its final reward is the row's."""
    trajectories = [
        Trajectory(
            transitions=[
                Transition(
                    ob=tinker.ModelInput.from_ints(_tokens(row.prompt)),
                    ac=TokensWithLogprobs(tokens=_tokens(row.completion), maybe_logprobs=None),
                    reward=0.0,
                    episode_done=True,
                )
            ],
            final_ob=tinker.ModelInput.empty(),
        )
        for row in rows
    ]
    return TrajectoryGroup(trajectories, [row.reward for row in rows], [{} for _ in rows])


def _tokens(text: str) -> list[int]:
    return [ord(character) for character in text]
