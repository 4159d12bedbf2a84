"""Configurations of short runs of the tiny model."""

import pytest

CONFIG = {
    "steps": 4,
    "device": "cpu",
    "rollout": {"group_size": 4, "prompts_per_step": 3, "max_new_tokens": 6},
    "optimizer": {"lr": 1e-3},
    "evaluation": {"eval_prompts": 3, "eval_samples": 2},
    "checkpoint": {"checkpoint_every": 2, "checkpoint_keep": 2},
}


@pytest.fixture
def make(tmp_path, tiny_model, rewards_file):
    """Configurations of a run of the tiny model with a reward that spreads."""

    def config(name="run", **changes):
        merged = {
            **CONFIG,
            "model": str(tiny_model),
            "output_dir": str(tmp_path / name),
            "reward": [f"{rewards_file}:lowercase"],
        }
        for key, value in changes.items():
            merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value
        return merged

    return config
