"""The other findings: for each a run in which it must appear and one beside it in which it must not."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from grouprl.report.findings import Severity

SHAPE = (16, 8, 8)


def uniform(*bounds, shape=SHAPE, seed=0):
    return np.random.default_rng(seed).uniform(*bounds, shape)


def ramp(start, end, shape=SHAPE):
    """From start to end over the steps."""
    return np.linspace(start, end, shape[0])[:, None, None] * np.ones(shape)


# ---- groups ---------------------------------------------------------------------------------------------------


def test_groups_of_several_prompts(rows, look, evidence):
    frame = rows().with_columns(
        prompt_id=pl.when((pl.col("step") == 4) & (pl.col("sample_index") > 3))
        .then(pl.lit("another"))
        .otherwise(pl.col("prompt_id"))
    )
    found = look(frame)["groups_mixed"]
    assert found.severity is Severity.ERROR
    assert found.steps == ((4, 4),)
    assert evidence(found)["groups with several prompts"] == 8


def test_two_draws_of_a_prompt_in_one_group(rows, look):
    """Grouped by prompt, where each draw is a group."""
    prompt_of = np.tile(np.arange(8), (16, 1))
    prompt_of[::2, 1] = 0
    frame = rows(prompt_of=prompt_of, estimator=None, options=None, advantages=np.full(SHAPE, np.nan))
    frame = frame.with_columns(
        group_id=pl.concat_str("step", "prompt_id"), advantage=pl.lit(None, dtype=pl.Float64)
    )
    found = look(frame)["groups_merged"]
    assert "Groups of 16 among groups of 8" in found.title
    assert "groups_merged" not in look(rows(prompt_of=prompt_of))


# ---- loss -----------------------------------------------------------------------------------------------------


def test_steps_without_a_gradient(rows, look, metrics):
    rates = np.full((16, 8), 0.5)
    rates[4:12] = 0.0
    given = metrics()
    for line in given[4:12]:
        line["grad_norm"], line["loss"] = 0.0, 0.0
    found = look(rows(rates=rates), metrics=given)["idle_steps"]
    assert found.severity is Severity.WARNING
    assert found.steps == ((5, 12),)
    assert "no group had rewards that differ" in found.meaning
    assert look(rows(rates=rates))["idle_steps"].steps == found.steps  # from the advantages alone


def test_no_step_learned_anything(rows, look, metrics):
    found = look(rows(rates=np.zeros((16, 8))), metrics=metrics(grad_norm=0.0, loss=0.0))
    assert found["idle_steps"].severity is Severity.ERROR
    assert found["idle_steps"].title == "No step learned anything"


def test_a_loss_of_zero_with_a_gradient_is_no_finding(rows, look, metrics):
    assert look(rows(), metrics=metrics(loss=0.0)) == {}


def test_an_idle_step_now_and_then_is_no_finding(rows, look, metrics):
    rates = np.full((16, 8), 0.5)
    rates[7] = 0.0
    given = metrics()
    given[7]["grad_norm"] = 0.0
    assert look(rows(rates=rates), metrics=given) == {}


def test_spread_and_yet_no_gradient(rows, look, metrics):
    found = look(rows(rates=np.full((16, 8), 0.5)), metrics=metrics(grad_norm=0.0))["no_gradient"]
    assert found.severity is Severity.ERROR
    assert found.steps == ((1, 16),)


@pytest.mark.parametrize("norm", [None, float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite(norm, rows, look, metrics):
    given = metrics()
    given[5]["grad_norm"] = norm
    assert look(rows(), metrics=given)["not_finite"].steps == ((6, 6),)


def test_a_norm_that_was_not_computed_is_no_nan(rows, look, metrics):
    given = metrics()
    given[5] |= {"grad_norm": None, "trained_completions": 0}
    assert look(rows(), metrics=given) == {}


def test_a_learning_rate_of_zero(rows, look, metrics):
    assert "learning_rate_zero" in look(rows(), metrics=metrics(lr=0.0))
    given = metrics(lr=0.0)
    given[-1]["lr"] = 1e-6  # a warm-up that ends
    assert look(rows(), metrics=given) == {}


# ---- held out -------------------------------------------------------------------------------------------------


def evaluated(before, after, half=0.05, prompts=100):
    return [
        {"step": s, "accuracy": a, "accuracy_low": a - half, "accuracy_high": a + half, "prompts": prompts}
        for s, a in ((0, before), (16, after))
    ]


@pytest.mark.parametrize(
    ("after", "name"),
    [(0.22, "held_out_does_not_follow"), (0.05, "held_out_falls"), (0.55, None), (0.48, None)],
)
def test_reward_rises_and_held_out_accuracy_does_not_follow(after, name, rows, look):
    rates = np.linspace(0.2, 0.7, 16)[:, None] * np.ones(8)
    found = look(rows(rates=rates), evaluations=evaluated(0.2, after))
    assert set(found) == ({name} if name else set())


def test_a_small_held_out_set_decides_nothing(rows, look):
    rates = np.linspace(0.2, 0.7, 16)[:, None] * np.ones(8)
    assert look(rows(rates=rates), evaluations=evaluated(0.2, 0.25, half=0.25, prompts=9)) == {}


@pytest.mark.parametrize(
    ("rate", "at_best", "after", "name"),
    [
        (
            0.8,
            0.7,
            0.4,
            "held_out_falls",
        ),  # training holds, held-out fell from its best and still is above its start
        (0.8, 0.7, 0.65, None),  # by less than a tenth
        (0.3, 0.7, 0.4, None),  # training fell as well: that is another matter
    ],
)
def test_held_out_accuracy_is_compared_with_its_best(rate, at_best, after, name, rows, look):
    rates = np.full((16, 8), 0.8)
    rates[8:] = rate
    first, last = evaluated(0.35, after)
    given = [first, evaluated(0.0, at_best)[1] | {"step": 8}, last]
    assert set(look(rows(rates=rates), evaluations=given)) == ({name} if name else set())


def test_neither_rises(rows, look):
    assert look(rows(rates=np.full((16, 8), 0.4)), evaluations=evaluated(0.4, 0.3)) == {}


# ---- truncation -----------------------------------------------------------------------------------------------


def cut(share):
    return np.where(uniform(0, 1, seed=9) < share, "length", "stop")


def test_a_third_cut_off(rows, look, evidence):
    frame = rows(finish_reason=cut(ramp(0.0, 0.33)))
    found = look(frame)["truncated"]
    last = frame.filter(pl.col("step") > 12)
    there = last.filter(pl.col("finish_reason") == "length")
    seen = evidence(found)
    assert seen["cut off at the limit"] == pytest.approx(len(there) / len(last))
    assert seen["right, of those cut off"] == pytest.approx(there["reward"].mean())
    rest = last.filter(pl.col("finish_reason") == "stop")
    assert seen["right, of those that finished"] == pytest.approx(rest["reward"].mean())
    assert seen["longest completion"] == 59


def test_cut_off_at_first_alone_is_no_finding(rows, look):
    assert look(rows(finish_reason=cut(ramp(0.8, 0.0)))) == {}


def test_all_cut_off_and_all_zero(rows, look):
    """Not wrong: not finished."""
    found = look(rows(rewards=np.zeros(SHAPE), finish_reason=cut(1.0)))
    assert found["all_truncated"].severity is Severity.ERROR
    assert "truncated" not in found


def test_all_wrong_but_finished_is_not_truncation(rows, look):
    assert "all_truncated" not in look(rows(rewards=np.zeros(SHAPE)))


# ---- unscored, unreadable -------------------------------------------------------------------------------------


def without_reward(frame, share):
    lost = pl.Series(uniform(0, 1, seed=4).ravel() < share)
    return frame.with_columns(
        reward=pl.when(~lost).then(pl.col("reward")), advantage=pl.lit(None, dtype=pl.Float64)
    )


@pytest.mark.parametrize(
    ("share", "severity"), [(0.1, Severity.WARNING), (0.4, Severity.ERROR), (0.01, None)]
)
def test_completions_without_a_reward(share, severity, rows, look, metrics):
    found = look(without_reward(rows(), share), metrics=metrics(reward_errors=2))
    assert found.get("unscored") is None if severity is None else found["unscored"].severity is severity
    if severity is not None:
        assert {e.label: e.value for e in found["unscored"].evidence}[
            "scores missing as a reward raised"
        ] == 32


def test_failures_of_format_are_told_from_mistakes(rows, look, evidence):
    """Of the wrong ones seven in ten could not be read, by a format component."""
    frame = rows(rates=np.full((16, 8), 0.5))
    read = (frame["reward"] == 1) | pl.Series(uniform(0, 1, seed=8).ravel() < 0.3)
    found = look(frame.with_columns(reward_format=read.cast(pl.Float64)))["unreadable"]
    assert evidence(found)["not readable, of those not right"] == pytest.approx(0.7, abs=0.1)
    assert "(reward_format)" in found.title
    assert found.examples[0].reward == 0.0


@pytest.mark.parametrize(("share", "there"), [(0.8, True), (0.3, False)])
def test_outcomes_of_the_math_task_say_it_too(share, there, rows, look):
    frame = rows(rates=np.full((16, 8), 0.5))
    unread = pl.Series(uniform(0, 1, seed=8).ravel() < share)
    marked = pl.Series(uniform(0, 1, seed=9).ravel() < 0.5)
    outcome = (
        pl.when(pl.col("reward") == 1)
        .then(pl.lit("right"))
        .when(~unread)
        .then(pl.lit("wrong"))
        .when(marked)
        .then(pl.lit("unparsed"))
        .otherwise(pl.lit("no_marker"))
    )
    found = look(frame.with_columns(outcome_math=outcome))
    assert ("unreadable" in found) == there
    if there:
        assert "(outcome_math)" in found["unreadable"].title


def test_few_failures_of_format_are_none(rows, look):
    frame = rows(rates=np.full((16, 8), 0.5))
    read = (frame["reward"] == 1) | pl.Series(uniform(0, 1, seed=8).ravel() < 0.7)
    assert "unreadable" not in look(frame.with_columns(reward_format=read.cast(pl.Float64)))


def test_a_column_that_right_ones_fail_says_something_else(rows, look):
    frame = rows(rates=np.full((16, 8), 0.5))
    assert "unreadable" not in look(frame.with_columns(reward_format=uniform(-1, 0).ravel()))


def test_empty_completions(rows, look):
    frame = rows()
    empty = pl.Series(uniform(0, 1).ravel() < 0.1)
    spoilt = frame.with_columns(completion=pl.when(empty).then(pl.lit(" \n")).otherwise(pl.col("completion")))
    assert "empty" in look(spoilt)
    one = frame.with_columns(
        completion=pl.when(pl.int_range(pl.len()) == 1000).then(pl.lit("")).otherwise(pl.col("completion"))
    )
    assert look(one) == {}


# ---- components -----------------------------------------------------------------------------------------------


def of_components(rows, right, other):
    return rows(rewards=right + other, reward_right=right, reward_other=other)


def test_a_component_that_never_varies(rows, look):
    right = (uniform(0, 1) < 0.5).astype(float)
    found = look(of_components(rows, right, np.ones(SHAPE)), success_reward=2.0)["component_never_varies"]
    assert "'other' never varies" in found.title
    assert found.meaning.startswith("It is 1 for every completion")


def test_a_component_that_differs_between_prompts_alone(rows, look):
    right = (uniform(0, 1) < 0.5).astype(float)
    between = uniform(0, 1, shape=(16, 8, 1), seed=2) * np.ones(8)
    found = look(of_components(rows, right, between), success_reward=2.0)["component_never_varies"]
    assert found.meaning.startswith("It differs between prompts alone")


def test_a_component_of_few_groups_may_vary_yet(rows, look):
    """32 groups without variation: up to a fifth could have it."""
    right = (uniform(0, 1, shape=(4, 8, 8)) < 0.5).astype(float)
    frame = rows(steps=4, rewards=right + 1, reward_right=right, reward_other=np.ones((4, 8, 8)))
    assert "component_never_varies" not in look(frame, success_reward=2.0)


def test_a_component_that_is_absent_in_some_steps_is_not_constant(rows, look):
    """Null is null, not 0: what is there varies."""
    right = (uniform(0, 1) < 0.5).astype(float)
    other = (uniform(0, 1, seed=3) < 0.5).astype(float)
    other[8:] = np.nan
    frame = rows(rewards=right + np.nan_to_num(other), reward_right=right, reward_other=other)
    frame = frame.with_columns(pl.col("reward_other").fill_nan(None))
    assert look(frame, success_reward=2.0) == {}


def test_a_component_that_drowns_another(rows, look, evidence):
    """A length in tokens beside a 0/1: standard deviations of 100/√12 and 1/2."""
    right = (uniform(0, 1) < 0.5).astype(float)
    length = uniform(0, 100, seed=2)
    found = look(of_components(rows, right, length), success_reward=100.0)["component_dominates"]
    assert "'other' drowns 'right'" in found.title
    assert evidence(found)["ratio of their std within groups"] == pytest.approx(100 / 12**0.5 / 0.5, rel=0.15)


def test_weights_count(rows, look):
    right = (uniform(0, 1) < 0.5).astype(float)
    length = uniform(0, 100, seed=2)
    frame = rows(rewards=right + length / 100, reward_right=right, reward_other=length)
    config = {"reward_weights": [1.0, 0.01]}
    assert look(frame, config=config, success_reward=1.5) == {}


@pytest.mark.parametrize("penalty", [{}, {"reward_overlong": np.zeros(SHAPE)}])
def test_a_component_of_weight_0_is_recorded_for_the_reader_alone(penalty, rows, look):
    """Neither one that never varies nor one that would drown the other is of any consequence."""
    right = (uniform(0, 1) < 0.5).astype(float)
    config = {"reward_weights": [1.0, 0.0]}
    for other in (np.ones(SHAPE), uniform(0, 100, seed=2)):
        frame = rows(rewards=right, reward_right=right, reward_other=other, **penalty)
        assert look(frame, config=config) == {}


def test_a_correct_answer_worth_five_times_its_format_does_not_drown_it(rows, look):
    right = 5 * (uniform(0, 1) < 0.5).astype(float)
    frame = of_components(rows, right, (uniform(0, 1, seed=3) < 0.5).astype(float))
    assert "component_dominates" not in look(frame, success_reward=6.0)


# ---- lengths --------------------------------------------------------------------------------------------------


def lengths(rows, right, wrong, rates=None, prompts=8):
    """Mean tokens of right and wrong completions, from the first step to the last."""
    shape = (16, prompts, 8)
    frame = rows(rates=np.full((16, prompts), 0.5) if rates is None else rates, prompts=prompts)
    noise = uniform(0.9, 1.1, shape=shape, seed=7).ravel()
    tokens = np.where(frame["reward"] == 1, ramp(*right, shape).ravel(), ramp(*wrong, shape).ravel()) * noise
    return frame.with_columns(completion_tokens=pl.Series(tokens.round().astype(int)))


def test_wrong_completions_that_grow(rows, look, evidence):
    found = look(lengths(rows, (40, 44), (40, 120)))["wrong_answers_grow"]
    # The quarters' middles: 1.5/15 and 13.5/15 of the way, 40 + 80 · 0.1 and 40 + 80 · 0.9.
    assert evidence(found)["wrong completions, first quarter"] == pytest.approx(48, rel=0.05)
    assert evidence(found)["wrong completions, last quarter"] == pytest.approx(112, rel=0.05)


@pytest.mark.parametrize("right", [(40, 120), (40, 110)])
def test_both_grow_while_the_reward_rises(right, rows, look):
    rates = np.linspace(0.3, 0.7, 16)[:, None] * np.ones(8)
    assert look(lengths(rows, right, (40, 120), rates)) == {}


@pytest.mark.parametrize("end", [120, 15])
def test_length_that_drifts_for_nothing(end, rows, look):
    found = look(lengths(rows, (40, end), (40, end), prompts=24))["length_drift"]
    assert ("as long" in found.title) == (end == 120)


def test_a_gain_that_may_be_there_is_not_denied(rows, look):
    """With 32 groups a quarter a gain of 0.13 cannot be told from none."""
    assert look(lengths(rows, (40, 120), (40, 120))) == {}


def test_shorter_and_better_is_no_finding(rows, look):
    rates = np.linspace(0.2, 0.8, 16)[:, None] * np.ones(8)
    assert look(lengths(rows, (40, 20), (40, 20), rates)) == {}


# ---- copies, entropy ------------------------------------------------------------------------------------------


def test_copies_that_the_log_probs_do_not_explain(rows, look, evidence):
    """Pairs of samples share their randomness: of 28 pairs 4 are equal, where e^-24 were to be expected."""
    frame = rows().with_columns(
        completion=pl.concat_str(pl.lit("text "), "group_id", (pl.col("sample_index") // 2).cast(pl.String))
    )
    found = look(frame)["copies_unexplained"]
    assert found.severity is Severity.ERROR
    assert evidence(found)["pairs of equal text"] == pytest.approx(4 / 28)
    assert evidence(found)["expected from the log-probs"] < 1e-4


def short_answers(rows, probability, seed=0, **keywords):
    """Answers of one token, drawn from two: the log-prob says how likely each is."""
    first = uniform(0, 1, seed=seed) < probability
    logprob = np.log(np.where(first, probability, 1 - probability))
    return rows(
        completion=[["b", "a"][int(f)] for f in first.ravel()],
        completion_tokens=np.ones(SHAPE, dtype=int),
        logprob_mean_sampler=logprob,
        logprob_mean_trainer=logprob,
        rewards=first.astype(float),
        **keywords,
    )


def test_copies_that_the_log_probs_explain_are_no_finding(rows, look):
    """Of two answers, at 0.6 and 0.4, every group has copies: 0.52 of the pairs."""
    assert look(short_answers(rows, 0.6)) == {}


def test_copies_are_not_held_against_top_k(rows, look):
    """Log-probs are over the full vocabulary, the samples from its head."""
    frame = short_answers(rows, 0.6).with_columns(
        logprob_mean_sampler=pl.lit(-3.0), logprob_mean_trainer=-3.0
    )
    assert "copies_unexplained" in look(frame)
    assert "copies_unexplained" not in look(frame, config={"rollout": {"top_k": 2}})


def test_groups_of_one_text(rows, look):
    found = look(short_answers(rows, 0.9))["groups_identical"]  # 0.9^8 = 0.43 of the groups
    assert found.severity is Severity.WARNING
    assert "groups_identical" not in look(short_answers(rows, 0.75))  # 0.1


def likely(rows, start, end, rates):
    nll = ramp(start, end) * uniform(0.9, 1.1, seed=5)
    return rows(logprob_mean_sampler=-nll, logprob_mean_trainer=-nll, rates=rates)


def test_entropy_that_is_gone_before_the_task_is_solved(rows, look):
    half = np.full((16, 8), 0.5)
    # Long texts, so that the log-probs do not let expect copies of which there are none.
    frame = likely(rows, 0.3, 0.0, half).with_columns(completion_tokens=pl.col("completion_tokens") * 40)
    assert "entropy_collapsed" in look(frame)
    assert "entropy_collapsed" not in look(likely(rows, 0.3, 0.1, half))


def test_little_entropy_once_solved_is_no_finding(rows, look):
    rates = np.linspace(0.5, 1.0, 16)[:, None] * np.ones(8)
    rates[12:] = 0.98
    assert "entropy_collapsed" not in look(likely(rows, 0.3, 0.0, rates))


def test_entropy_that_rises_while_the_reward_falls(rows, look):
    falls = np.linspace(0.8, 0.3, 16)[:, None] * np.ones(8)
    assert "entropy_rises" in look(likely(rows, 1.0, 4.0, falls))
    assert "entropy_rises" not in look(likely(rows, 1.0, 4.0, falls[::-1]))


# ---- sampler and trainer --------------------------------------------------------------------------------------


def apart(rows, shift, noise):
    sampler = -uniform(0.4, 0.8)
    gap = shift + np.random.default_rng(3).normal(0, noise, SHAPE)
    return rows(logprob_mean_sampler=sampler, logprob_mean_trainer=sampler - gap)


@pytest.mark.parametrize(
    ("shift", "noise", "severity"),
    [
        (0.03, 0.01, Severity.WARNING),
        (0.3, 0.1, Severity.ERROR),  # older weights
        (0.0, 0.2, Severity.WARNING),  # right on average, and far off each time
        (0.001, 0.005, None),  # bfloat16 against float32
        (0.0, 1e-6, None),
    ],
)
def test_sampler_and_trainer_apart(shift, noise, severity, rows, look, evidence):
    found = look(apart(rows, shift, noise))
    if severity is None:
        assert found == {}
        return
    assert found["sampler_mismatch"].severity is severity
    assert evidence(found["sampler_mismatch"])["KL sampler to trainer, a token"] == pytest.approx(
        shift, abs=0.02
    )


@pytest.mark.parametrize(
    ("shift", "said"), [(0.03, None), (0.3, "The policy moves far between drawing and training")]
)
def test_a_run_that_draws_by_earlier_weights_may_be_apart(shift, said, rows, look, metrics):
    found = look(apart(rows, shift, 0.01), metrics=[{**line, "staleness": 1} for line in metrics()])
    assert [(f.title, f.severity) for f in found.values()] == ([(said, Severity.WARNING)] if said else [])


def test_a_penalty_that_was_never_needed_is_no_idle_component(rows, look):
    right = (uniform(0, 1) < 0.5).astype(float)
    frame = rows(rewards=right, reward_right=right, reward_overlong=np.zeros(SHAPE))
    assert look(frame) == {}
