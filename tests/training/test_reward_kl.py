"""KL to the reference in the reward: hand values, and what a run makes and records of it."""

import json

import polars as pl
import pytest
import tiny
import torch
from updates import GROUPS, config

from grouprl import advantages
from grouprl.errors import ConfigError
from grouprl.policy import load_policy
from grouprl.tasks import Scores
from grouprl.training import train
from grouprl.training.estimators import load_estimator
from grouprl.training.reward_kl import penalise

REWARDS = [1.0, 0.5, None, 0.0, 1.0, 1.0, 0.25, 0.0, 0.5]
SCORES = Scores(list(REWARDS), {"own": list(REWARDS)})


def by_hand(reference, temperature=1.0):
    """Σ_t (−1 − log π_ref), one sequence at a time: the sampler of these groups gave every token log-prob −1."""
    sums = []
    for group in GROUPS:
        for completion in group.completions:
            ids = torch.tensor([[*group.prompt_token_ids, *completion.token_ids]])
            with torch.no_grad():
                logits = reference.model(input_ids=ids, use_cache=False).logits[0] / temperature
            rows = logits.log_softmax(-1)[len(group.prompt_token_ids) - 1 : -1]
            sums.append(sum(-1.0 - float(row[token]) for row, token in zip(rows, completion.token_ids)))
    return sums


@pytest.mark.parametrize("family", ["llama", "bloom"])
@pytest.mark.parametrize(("temperature", "budget"), [(1.0, 1000), (0.7, 1)])
def test_the_sum_of_k1_is_subtracted_from_each_reward(family, temperature, budget):
    policy, reference = tiny.policy(family), tiny.policy(family, seed=1)
    settings = config(
        objective={"beta": 0.1, "kl_in": "reward"},
        rollout={"temperature": temperature},
        micro_batch_tokens=budget,
    )
    found = penalise(SCORES, GROUPS, policy, reference, settings)
    sums = by_hand(reference, temperature)
    expected = [None if r is None else 0.1 * s for r, s in zip(REWARDS, sums)]
    assert found.columns["kl_penalty"][2] is found.scores.rewards[2] is None
    for i, cost in enumerate(expected):
        if cost is not None:
            assert found.columns["kl_penalty"][i] == pytest.approx(cost, rel=1e-4)
            assert found.scores.rewards[i] == pytest.approx(REWARDS[i] - cost, rel=1e-4)
    assert found.scores.components == SCORES.components
    scored = [s for s, r in zip(sums, REWARDS) if r is not None]
    tokens = (
        sum(len(c.token_ids) for g in GROUPS for c in g.completions) - 5
    )  # the third of group a is unscored
    assert found.metrics["kl_penalty_mean"] == pytest.approx(0.1 * sum(scored) / 8, rel=1e-4)
    assert found.metrics["kl_ref"] == pytest.approx(sum(scored) / tokens, rel=1e-4)
    assert found.metrics["ref_clamped_share"] == 0


def test_in_the_loss_the_rewards_stay_and_nothing_is_recorded():
    found = penalise(SCORES, GROUPS, tiny.policy(), tiny.policy(seed=1), config(objective={"beta": 0.1}))
    assert found.scores is SCORES
    assert not found.columns
    assert not found.metrics


def test_nothing_scored_has_no_penalty():
    nothing = Scores([None] * 9, {})
    settings = config(objective={"beta": 0.1, "kl_in": "reward"})
    found = penalise(nothing, GROUPS, tiny.policy(), tiny.policy(seed=1), settings)
    assert found.scores.rewards == [None] * 9
    assert found.metrics == {"kl_penalty_mean": None}


def test_a_run_makes_advantages_of_what_is_left_and_records_both(make):
    """At the first step the policy is the reference: no penalty. At the second it has moved."""
    objective = {"beta": 0.5, "kl_in": "reward", "kl": "k1"}
    run = train(make(steps=2, objective=objective, optimizer={"lr": 3e-3}, record_tokens=True))
    first, second = run.metrics
    assert first["kl_ref"] == pytest.approx(0, abs=1e-6)
    assert second["kl_ref"] != pytest.approx(0, abs=1e-4)
    assert second["clamped_share"] == second["ref_clamped_share"] == 0
    rows = pl.read_parquet(run.path / "rollouts" / "step_00002.parquet")
    penalty = rows["kl_penalty"]
    assert penalty.abs().max() > 1e-3
    assert second["kl_penalty_mean"] == pytest.approx(penalty.mean(), rel=1e-6)
    assert second["reward_mean"] == pytest.approx(rows["reward_lowercase"].mean())  # the task's own
    for given, own, cost in zip(rows["reward"], rows["reward_lowercase"], penalty):
        assert given == pytest.approx(own - cost, abs=1e-12)
    again = advantages.grpo(rows["reward"].to_list(), rows["group_id"].to_list())
    assert rows["advantage"].to_list() == pytest.approx(again.tolist(), abs=1e-5)

    reference = load_policy(make()["model"])
    for row in rows.iter_rows(named=True):
        ids, start = [*row["prompt_token_ids"], *row["token_ids"]], len(row["prompt_token_ids"])
        with torch.no_grad():
            logits = reference.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        logprobs = logits.log_softmax(-1)[start - 1 : -1]
        d = [s - float(r[t]) for s, r, t in zip(row["logprobs_sampler"], logprobs, row["token_ids"])]
        assert row["kl_penalty"] == pytest.approx(0.5 * sum(d), abs=1e-4)
    assert json.loads(rows["advantage_options"][0])["eps"] == 1e-6


@pytest.mark.parametrize(
    ("estimator", "why"), [("gdpo", "looks at the rewards' components"), ("maxrl", "≥ 0")]
)
def test_estimators_that_cannot_take_it_are_refused(estimator, why):
    table = {"objective": {"beta": 0.1, "kl_in": "reward"}, "advantage": {"estimator": estimator}}
    with pytest.raises(ConfigError, match=why) as caught:
        load_estimator(config(**table))
    assert "\n" not in str(caught.value)
    assert load_estimator(config(**{**table, "objective": {"beta": 0.1}})).name == estimator
