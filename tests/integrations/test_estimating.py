"""An estimator in a trainer: what it is given, what is refused, what is checked. No framework is needed here."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from grouprl import advantages
from grouprl.errors import ConfigError, EstimatorError, RunError
from grouprl.integrations.batch_metrics import batch_metrics
from grouprl.integrations.estimating import Batch, Estimating, as_estimator, with_weights

LACKING = {"greedy_rewards": "nothing is greedy here", "values": "there is no critic"}


def made(given, **options):
    estimator = as_estimator(given, where="here", lacking=LACKING)
    return Estimating(estimator, options, where="here")


def batch(rewards, size=2, **more):
    rewards = torch.tensor(rewards)
    ids = torch.arange(len(rewards)) // size
    return Batch(rewards, ids, [str(i) for i in ids.tolist()], **more)


def test_it_gives_what_the_estimator_gives():
    rewards = [1.0, 0.0, 2.0, math.nan]
    found = made("grpo", convention="trl")(batch(rewards))
    # one group of a spread of 1: ±0.5 over a sample std of √½, and TRL's eps; one with a single score
    expected = 0.5 / (math.sqrt(0.5) + 1e-4)
    assert found.tolist() == pytest.approx([expected, -expected, 0.0, 0.0], rel=1e-6)


def test_every_registered_estimator_that_can_run_does():
    more = {"lengths": torch.tensor([1, 2, 3, 4]), "components": {"a": torch.tensor([1.0, 0.0, 0.0, 1.0])}}
    ran = []
    for name in advantages.names():
        estimator = advantages.get(name)
        if estimator.scope == "token" or estimator.needs & set(LACKING):
            with pytest.raises(ConfigError, match=f"^here: estimator '{name}'"):
                made(name)
            continue
        options = {"max_reward": 1.0} if "max_reward" in estimator.needs else {}
        found = made(name, **options)(batch([1.0, 0.0, 0.0, 1.0], **more))
        assert found.shape == (4,)
        assert found.isfinite().all()
        ran.append(name)
    assert {"grpo", "rloo", "opo", "gdpo", "ngrpo", "spo"} <= set(ran)


def test_a_registered_function_is_found_again_and_another_is_taken_as_it_is():
    assert as_estimator(advantages.rloo, where="here", lacking={}).name == "rloo"
    own = as_estimator(lambda rewards, group_ids, *, lengths: rewards, where="here", lacking={})
    assert own.needs == {"lengths"}
    scaled = made(partial(advantages.group_advantages, scale="none"))
    assert scaled(batch([1.0, 0.0])).tolist() == [0.5, -0.5]


def test_an_unscored_completion_gets_zero_whatever_it_is_given():
    found = made(lambda rewards, group_ids: torch.ones_like(rewards))(batch([1.0, math.nan, math.inf, 0.0]))
    assert found.tolist() == [1.0, 0.0, 0.0, 1.0]


def test_a_state_is_saved_and_read_and_left_alone_by_an_evaluation():
    first, second = made("spo"), made("spo")
    rewards = batch([1.0, 1.0, 0.0, 1.0])
    first(rewards)
    state = first.state()
    assert first(rewards, learn=False).tolist() == first(rewards, learn=False).tolist()
    assert first.state() == state
    second.load_state(state)
    assert second(rewards).tolist() == first(rewards).tolist()
    with pytest.raises(RunError, match="its state cannot be read"):
        second.load_state({"nothing": 1})
    assert made("grpo").state() is None


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda rewards, group_ids: rewards[:1], r"returned shape \(1,\)"),
        (lambda rewards, group_ids: "text", "returned a str"),
        (lambda rewards, group_ids: rewards / 0.0, "returned nan|returned inf"),
        (lambda rewards: rewards, "raised TypeError"),
    ],
)
def test_what_is_no_advantage_is_refused_before_the_run(function, said):
    with pytest.raises(ConfigError, match=said) as caught:
        made(function)
    assert "on made-up rewards before the run" in str(caught.value)


def test_an_error_of_the_estimator_is_told_with_its_name():
    def picky(rewards, group_ids):
        if len(rewards) != 8:
            raise ValueError("not eight")
        return rewards

    with pytest.raises(
        EstimatorError, match="estimator 'picky': raised ValueError: not eight, expected 4 finite"
    ):
        made(picky)(batch([1.0, 0.0, 1.0, 0.0]))


def test_a_trainers_weights_go_to_the_estimator_that_takes_them():
    gdpo, rloo = advantages.get("gdpo"), advantages.get("rloo")
    assert with_weights(gdpo, {}, {"a": 2.0}) == {"weights": {"a": 2.0}}
    assert with_weights(gdpo, {"weights": {"a": 1.0}}, {"a": 2.0}) == {"weights": {"a": 1.0}}
    assert with_weights(rloo, {"eps": 1}, {"a": 2.0}) == {"eps": 1}


def test_a_batchs_numbers():
    """By hand: a group with spread, one of equal rewards at 1, one with a single score."""
    rewards = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.5, math.nan])
    found = batch_metrics(
        rewards,
        torch.tensor([0, 0, 1, 1, 2, 2]),
        torch.tensor([2.0, -1.0, 0.0, 0.0, 0.0, 0.0]),
        components={"right": rewards},
        lengths=[1, 2, 3, 4, 5, 6],
        finished=[True, True, False, False, False, False],
        success_reward=1.0,
    )
    assert found["reward_mean"] == pytest.approx(3.5 / 5)
    assert found["reward_group_std"] == pytest.approx(0.5 / 3)
    assert found["groups"] == 3
    assert found["groups_informative_share"] == found["groups_all_high_share"] == pytest.approx(1 / 3)
    assert found["groups_single_share"] == pytest.approx(1 / 3)
    assert found["groups_all_low_share"] == found["groups_unscored_share"] == 0.0
    assert found["unscored_share"] == pytest.approx(1 / 6)
    assert found["truncated_share"] == pytest.approx(4 / 6)
    assert (found["completion_tokens_mean"], found["finished_tokens_mean"]) == (3.5, 1.5)
    assert (found["advantage_mean_abs"], found["advantage_max_abs"]) == (pytest.approx(3 / 5), 2.0)
    assert found["groups_with_advantage_share"] == pytest.approx(1 / 3)
    assert (found["reward_right_mean"], found["reward_right_count"]) == (pytest.approx(0.7), 5)
