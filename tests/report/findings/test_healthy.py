"""Healthy runs have no findings: the quickstart, made-up ones of many kinds, and a real tiny one."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import grouprl
from grouprl.report import findings


def test_the_quickstart_has_none(quickstart):
    """The real one: 34 % of its groups without spread, 27 % cut off at first, entropy from 1.6 to 0.3 nats."""
    report = findings.report(quickstart)
    assert report.findings == ()
    assert report.worst is None
    assert report.overview.kinds["informative"] == pytest.approx(85 / 128)
    assert report.overview.loss.startswith("0 throughout, as it should be")


@pytest.mark.parametrize("seed", range(12))
def test_made_up_runs_have_none(seed, rows, look, metrics):
    assert look(rows(seed=seed), metrics=metrics()) == {}


@pytest.mark.parametrize("seed", range(6))
def test_many_steps_over_the_same_prompts_have_none(seed, rows, look):
    """Prompts come again, and their pass rates rise: a prompt is dead before and after it is learned."""
    rng = np.random.default_rng(seed)
    start = rng.uniform(-3, 1, 24)
    prompt_of = np.stack([rng.permutation(24)[:8] for _ in range(60)])
    rates = 1 / (1 + np.exp(-(start[prompt_of] + np.linspace(0, 4, 60)[:, None])))
    assert look(rows(steps=60, rates=rates, prompt_of=prompt_of, seed=seed)) == {}


def test_few_steps_and_few_groups_say_nothing(rows, look):
    """One of one: whatever it shows may be chance."""
    assert look(rows(steps=1, prompts=1, rates=[[0.5]])) == {}
    assert look(rows(steps=2, prompts=2, rates=[[0.5, 0.0], [0.0, 0.5]])) == {}


def test_a_run_of_graded_rewards_has_none(rows, look):
    rng = np.random.default_rng(5)
    assert look(rows(rewards=rng.normal(0, 1, (16, 8, 8)))) == {}


def test_no_rows_have_none(rows, look):
    assert look(rows().clear()) == {}


def test_rewards_and_groups_alone_are_enough(rows, look):
    """Another framework's file: what is missing is null, and no check needs it."""
    assert look(rows().select("group_id", "reward")) == {}
    assert look(rows().select("step", "group_id", "reward", "advantage", "completion")) == {}


@pytest.mark.parametrize("ddof", [0, 1])
def test_another_framework_s_scale_is_no_finding(ddof, rows, look):
    """Where no estimator is named, population and sample std are as good."""
    reward = rows()["reward"].to_numpy().reshape(16, 8, 8)
    std = reward.std(-1, ddof=ddof, keepdims=True)
    advantage = (reward - reward.mean(-1, keepdims=True)) / (std + 1e-4)
    assert look(rows(rewards=reward, advantages=advantage, estimator=None, options=None)) == {}


def test_groups_that_dynamic_sampling_dropped_are_counted_and_not_held_against_it(rows, look):
    """Their advantages are 0, or none, whatever their rewards: they were never used."""
    frame = rows()
    dropped = pl.col("step") % 2 == 0
    frame = frame.with_columns(
        used=~dropped, advantage=pl.when(dropped).then(None).otherwise(pl.col("advantage"))
    )
    assert look(frame) == {}
    zero = frame.with_columns(advantage=pl.col("advantage").fill_null(0.0))
    assert look(zero) == {}


STOPPED = {
    "group_size": 4,
    "prompts_per_step": 4,
    "max_new_tokens": 64,
    "stop": list("abcdefghij"),
}


def tiny_run(tiny_model, rewards_file, folder, **keywords):
    """A random model on the whole loop; most completions end, at one of the stop strings."""
    config = {
        "model": str(tiny_model),
        "reward": [f"{rewards_file}:lowercase"],
        "steps": 3,
        "output_dir": str(folder),
        "device": "cpu",
        "rollout": STOPPED,
        "evaluation": {"eval_prompts": 2, "eval_samples": 2},
    }
    return grouprl.train(config | keywords)


def test_a_real_tiny_run_has_none(tiny_model, rewards_file, tmp_path):
    report = findings.report(tiny_run(tiny_model, rewards_file, tmp_path / "run").path)
    assert [finding.name for finding in report.findings] == []
    assert report.overview.completions == 48


def test_nor_has_one_that_drops_groups_and_completions(tiny_model, rewards_file, tmp_path):
    """Dynamic sampling, four of eight completions trained on, and overlong ones punished."""
    run = tiny_run(
        tiny_model,
        rewards_file,
        tmp_path / "run",
        reward=[f"{rewards_file}:parity"],
        rollout=STOPPED | {"group_size": 8},
        sampling={"max_sampling_rounds": 2, "train_group_size": 4, "overlong_buffer_tokens": 16},
    )
    rows = run_rows(run)
    assert not rows["used"].all()
    report = findings.report(run.path)
    assert [finding.name for finding in report.findings] == []
    assert report.overview.completions == len(rows) > 48


def run_rows(run):
    return pl.concat(map(pl.read_parquet, sorted((run.path / "rollouts").glob("*.parquet"))))
