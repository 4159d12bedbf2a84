"""Groups that taught nothing, against what the prompts' pass rates let expect."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import polars as pl
import pytest

from grouprl.report import findings
from grouprl.report.findings import Severity
from grouprl.report.findings.dead_share import all_equal, pass_record, size_that_mends


def test_all_wrong_groups_are_counted_with_their_tokens(rows, look, evidence):
    rates = np.full((16, 8), 0.4)
    rates[:, 2:] = 0.0
    frame = rows(rates=rates)
    found = look(frame)["dead_groups"]
    sums = frame.group_by("group_id").agg(pl.col("reward").sum(), pl.col("completion_tokens").sum(), pl.len())
    dead = sums.filter(pl.col("reward").is_in([0.0, 8.0]))
    seen = evidence(found)
    assert found.severity is Severity.WARNING
    assert seen["groups without spread"] == pytest.approx(len(dead) / 128)
    assert seen["all wrong"] == pytest.approx(len(sums.filter(pl.col("reward") == 0)) / 128)
    assert seen["tokens sampled in them"] == dead["completion_tokens"].sum()
    assert seen["of all tokens"] == pytest.approx(
        dead["completion_tokens"].sum() / frame["completion_tokens"].sum()
    )
    assert "easier prompts" in " ".join(found.advice)
    drawn = 1 / (1 - seen["groups without spread"])
    assert f"{drawn:.1f} groups for each one" in " ".join(found.advice)


def test_dynamic_sampling_is_not_advised_where_it_is_on(rows, look):
    rates = np.full((16, 8), 0.4)
    rates[:, 2:] = 0.0
    config = {"sampling": {"max_sampling_rounds": 4}}
    assert "replaces them already" in " ".join(look(rows(rates=rates), config=config)["dead_groups"].advice)


def test_all_right_groups_ask_for_harder_prompts(rows, look):
    rates = np.full((16, 8), 0.5)
    rates[:, 2:] = 1.0
    found = look(rows(rates=rates))["dead_groups"]
    assert "all right" in found.title
    assert "harder prompts" in " ".join(found.advice)


def test_half_and_half_is_within_the_bounds_of_chance(rows, look):
    rates = np.full((16, 8), 0.5)
    rates[:, 4:] = 0.0
    assert "dead_groups" not in look(rows(rates=rates))


@pytest.mark.parametrize(("rate", "severity"), [(1.0, Severity.INFO), (0.0, Severity.WARNING)])
def test_of_late_solved_is_a_remark_and_stuck_a_warning(rate, severity, rows, look):
    rates = np.full((16, 8), 0.5)
    rates[12:] = rate
    found = look(rows(rates=rates))["dead_groups_lately"]
    assert found.severity is severity
    assert found.steps == ((13, 16),)


@pytest.mark.parametrize(("size", "share"), [(2, 0.7024), (4, 0.4490), (8, 0.2007), (16, 0.0403)])
def test_the_expected_share_is_unbiased(size, share):
    """Over c ~ Binomial(n, p) its mean is p^G + (1 − p)^G exactly; p = 0.1819 as someone's run had."""
    p, n = Fraction(1819, 10_000), 24
    c = np.arange(n + 1)
    estimate = all_equal(c, np.full(n + 1, n), np.full(n + 1, size))
    weights = [float(comb(n, int(k)) * p ** int(k) * (1 - p) ** (n - int(k))) for k in c]
    exact = float(p**size + (1 - p) ** size)
    assert np.dot(weights, estimate) == pytest.approx(exact, rel=1e-12)
    assert exact == pytest.approx(share, abs=2e-4)


def test_expected_comes_from_other_steps_alone(rows):
    """A prompt of one step has no record, however often it is drawn in it."""
    prompt_of = np.array([[0, 0, 1, 2], [3, 1, 3, 2]])
    run = findings.RunData(rows(steps=2, prompts=4, rates=np.full((2, 4), 0.5), prompt_of=prompt_of).lazy())
    record = pass_record(run)
    assert sorted(record["group_id"]) == ["train/1/2", "train/1/3", "train/2/1", "train/2/3"]
    counts = {(row["step"], row["prompt_key"]): row["c"] for row in record.iter_rows(named=True)}
    for row in record.iter_rows(named=True):
        assert row["others_c"] == counts[3 - row["step"], row["prompt_key"]]
        assert row["others_n"] == 8


def test_graded_rewards_have_no_pass_rate(rows):
    rng = np.random.default_rng(0)
    run = findings.RunData(rows(rewards=rng.random((16, 8, 8))).lazy())
    assert pass_record(run) is None


def test_expected_and_the_group_size_that_mends(rows, look, evidence):
    """p = 0.1, G = 4: 0.9^4 + 0.1^4 = 0.656 of the groups; 0.9^16 = 0.185 of them at G = 16."""
    prompt_of = np.tile(np.arange(8), (40, 1))
    found = look(rows(steps=40, size=4, rates=np.full((40, 8), 0.1), prompt_of=prompt_of, seed=3))
    seen = evidence(found["dead_groups"])
    assert seen["expected from the prompts' pass rates"] == pytest.approx(0.6562, abs=0.05)
    assert "dead_groups_unexplained" not in found
    assert any(line.startswith("A group size of 16 instead of 4") for line in found["dead_groups"].advice)


def test_no_group_size_mends_what_is_never_solved(rows):
    prompt_of = np.tile(np.arange(8), (40, 1))
    run = findings.RunData(
        rows(steps=40, rates=np.zeros((40, 8)), prompt_of=prompt_of).lazy(), success_reward=1.0
    )
    assert pass_record(run) is None  # one reward alone: nothing says what a success is
    mixed = np.zeros((40, 8))
    mixed[:, 0] = 0.5
    run = findings.RunData(rows(steps=40, rates=mixed, prompt_of=prompt_of).lazy())
    assert size_that_mends(pass_record(run), 8, 0.9) is None


def test_a_reward_per_group_is_more_than_pass_rates_explain(rows, look, evidence):
    """Whole groups are right or wrong at random, though every prompt is solved half of the time."""
    prompt_of = np.tile(np.arange(12), (40, 1))
    whole = (np.random.default_rng(1).random((40, 12, 1)) < 0.5) * np.ones(8)
    found = look(rows(steps=40, prompts=12, rewards=whole, prompt_of=prompt_of))["dead_groups_unexplained"]
    seen = evidence(found)
    assert seen["groups without spread"] == 1.0
    # Of the other 39 groups, 20 say, are right: the chance that 8 of 39 · 8 are equal is below 2^-6.
    assert seen["expected from the prompts' pass rates"] < 1 / 64


def test_what_is_learned_is_not_unexplained(rows, look):
    """Never solved, then always: dead for another reason in each half, and at 0.5 on average."""
    prompt_of = np.tile(np.arange(8), (40, 1))
    rates = np.repeat([0.0, 1.0], 20)[:, None] * np.ones(8)
    rates[18:22] = 0.5
    assert "dead_groups_unexplained" not in look(rows(steps=40, rates=rates, prompt_of=prompt_of))


def test_one_scored_completion_among_siblings_without(rows, look):
    frame = rows()
    lone = (pl.col("group_id").str.ends_with("/0")) & (pl.col("sample_index") > 0)
    frame = frame.with_columns(
        reward=pl.when(~lone).then(pl.col("reward")),
        advantage=pl.when(pl.col("group_id").str.ends_with("/0")).then(0.0).otherwise(pl.col("advantage")),
    )
    found = look(frame)
    assert found["single_groups"].steps == ((1, 16),)
    assert "no reward" in found["single_groups"].meaning


def test_a_group_or_two_that_lost_a_sibling_is_no_finding(rows, look):
    frame = rows().filter(~((pl.col("group_id") == "train/3/1") & (pl.col("sample_index") == 7)))
    assert "single_groups" not in look(frame)


def test_every_group_of_one(rows, look):
    frame = rows(size=1, rates=np.full((16, 8), 0.5))
    found = look(frame)
    assert found["lone_completions"].severity is Severity.ERROR
    assert "dead_groups" not in found


def test_a_group_of_one_is_right_where_the_baseline_is_elsewhere(rows, look):
    """ReMax compares with a greedy completion."""
    reward = np.random.default_rng(0).integers(0, 2, (16, 8, 1)).astype(float)
    greedy = np.zeros((16, 8, 1))
    frame = rows(
        rewards=reward,
        advantages=reward - greedy,
        size=1,
        estimator="remax",
        options="{}",
        greedy_reward=greedy,
    )
    assert look(frame) == {}
