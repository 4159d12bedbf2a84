"""verl: `_write_generations` of the classic trainer (no uid) and of the newer one, which hands it uid sorted."""

from __future__ import annotations

import sys
from pathlib import Path

from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

sys.path.append(str(Path(__file__).parents[2] / "tests"))
from rollout_files import STEPS, Row, of

DISTRIBUTION = "verl"


def write(folder: Path) -> dict[str, str]:
    for step in STEPS:
        of_step = of(step)
        infos = {
            "acc": [row.reward == 1.0 for row in of_step],
            "pred": [row.completion for row in of_step],
        }
        _call(RayPPOTrainer, folder / "classic", of_step, infos)
        uid = {"uid": [f"{row.draw}_{row.place}_0" for row in of_step]}
        _call(PPOTrainer, folder / "uid", of_step, uid)
    return {
        "classic": "verl.trainer.ppo.ray_trainer.RayPPOTrainer._write_generations",
        "uid": "verl.trainer.ppo.v1.trainer_base.PPOTrainer._write_generations",
    }


def _call(trainer: type, folder: Path, of_step: list[Row], infos: dict[str, list]) -> None:
    trainer._write_generations(
        [row.prompt for row in of_step],
        [row.completion for row in of_step],
        ["4" for _ in of_step],
        [row.reward for row in of_step],
        infos,
        str(folder),
        of_step[0].step,
    )
