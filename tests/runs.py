"""What tests of whole runs share: comparing two, stopping one, hearing one, and reading what it recorded."""

import math
import sys

import polars as pl
import torch
from safetensors.torch import load_file

from grouprl import advantages
from grouprl.training import Listener


def timeless(records):
    """Metrics but for what a clock or the machine decides."""
    return [
        {k: v for k, v in r.items() if not k.startswith(("seconds", "peak")) and not k.endswith("per_s")}
        for r in records
    ]


def weights(folder):
    return load_file(folder / "model.safetensors")


def same_weights(a, b):
    left, right = weights(a), weights(b)
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


class StopAfter(Listener):
    """Raise once a step is recorded, as Ctrl-C between two steps would."""

    def __init__(self, step):
        self.step = step

    def stepped(self, metrics, rows):
        if metrics["step"] == self.step:
            raise KeyboardInterrupt


class Warnings(Listener):
    def __init__(self):
        self.messages, self.notes = [], []

    def started(self, config, path, *, machine, step, notes):
        self.notes = list(notes)

    def warned(self, message):
        self.messages.append(message)


def step_rows(run, step):
    return pl.read_parquet(run.path / "rollouts" / f"step_{step:05d}.parquet")


def recomputed(rows, call, estimator):
    """The advantages of a step from its rows, as docs/records.md says."""
    data = {
        "lengths": lambda: rows["trained_tokens"].to_list(),
        "greedy_rewards": lambda: rows["greedy_reward"].to_list(),
        "components": lambda: {n[7:]: rows[n].to_list() for n in rows.columns if n.startswith("reward_")},
    }
    ids = rows["prompt_id" if estimator.scope == "stateful" else "group_id"].to_list()
    needed = {name: data[name]() for name in estimator.needs if name in data}
    rewards = torch.tensor([math.nan if r is None else r for r in rows["reward"]], dtype=torch.float64)
    return call(rewards, ids, **needed)


def equal_runs(one, other):
    assert timeless(one.metrics) == timeless(other.metrics)
    assert same_weights(one.model_dir, other.model_dir)
    for step in range(1, 5):
        assert step_rows(one, step).equals(step_rows(other, step))
    mine, theirs = (run.path / "checkpoints/step_00004/estimator.json" for run in (one, other))
    assert mine.exists() == theirs.exists()
    assert not mine.exists() or mine.read_bytes() == theirs.read_bytes()


def unload(names):
    """As a new process would be: the user's files are not imported, and what they registered is not known."""
    for name in names:
        advantages.unregister(name)
    for module in [m for m in sys.modules if m.startswith(("my_broken_", "my_estimators_"))]:
        del sys.modules[module]
