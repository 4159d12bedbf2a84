"""Configurations of short runs of the tiny model."""

import json
import sys

import pytest
from runs import unload

from grouprl import advantages

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


PATCHY = '''
def patchy(completions):
    """Share of upper-case letters; None for about a third of the completions."""
    shares = [sum(c.isupper() for c in text) / max(len(text), 1) for text in completions]
    return [None if sum(map(ord, text)) % 3 == 0 else share for text, share in zip(completions, shares)]
'''


@pytest.fixture
def few(make, tmp_path):
    """A short run over four prompts, so that each comes again, with two rewards, one of which abstains."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"question {i}"}) + "\n" for i in range(5)))
    patchy = tmp_path / "patchy.py"
    patchy.write_text(PATCHY)

    def config(name="run", **changes):
        made = make(name, task=str(prompts), evaluation={"eval_prompts": 0}, **changes)
        if "reward" not in changes:
            made |= {"reward": [*made["reward"], f"{patchy}:patchy"], "reward_weights": [0.5, 2.0]}
        return made

    return config


@pytest.fixture
def forget(monkeypatch):
    """What a test registers and imports is gone after it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(advantages.names())
    yield
    unload(set(advantages.names()) - before)
