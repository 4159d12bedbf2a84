"""Token-level tensors with ids, as verl and SkyRL hand over, without either."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from grouprl import advantages
from grouprl.errors import ConfigError, EstimatorError
from grouprl.integrations.estimating import MEMORY
from grouprl.integrations.token_level import TokenLevel, WithOptions

LACKING = (("components", "there is one reward"), (MEMORY, "nothing is saved"))


def made(name):
    return TokenLevel(name, "here", "options={{{name}: …}}", LACKING, r"pad\d+")


def call(name, rewards, ids, mask=None, **options):
    rewards = torch.tensor(rewards)
    mask = torch.ones(rewards.shape, dtype=torch.int64) if mask is None else torch.tensor(mask)
    return made(name)(rewards, mask, ids, options)


def test_an_advantage_goes_to_the_trained_tokens_of_its_row():
    mask = [[1, 0, 1], [1, 1, 0]]
    found = call("rloo", [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]], ["a", "a"], mask)
    assert found.tolist() == [[1.0, 0.0, 1.0], [-1.0, -1.0, 0.0]]


def test_rewards_are_summed_over_all_tokens_in_double_precision():
    """1e8 + 1 is 1e8 in float32; the reward of a token that is not trained counts."""
    found = call("dr_grpo", [[1e8, 1.0, -1e8], [0.0, 0.0, 0.0]], ["a", "a"], [[1, 0, 0], [1, 0, 0]])
    assert found[:, 0].tolist() == [0.5, -0.5]


@pytest.mark.parametrize(
    "ids",
    [
        ["x", "y", "x"],
        np.array(["x", "y", "x"], dtype=object),
        torch.tensor([5, -1, 5]),
        [(1, 2), (3,), (1, 2)],
    ],
)
def test_ids_of_any_kind(ids):
    assert call("rloo", [[1.0], [9.0], [0.0]], ids).flatten().tolist() == [1.0, 0.0, -1.0]


def test_padding_is_unscored():
    found = call("reinforce_plus_plus", [[1.0], [0.0], [50.0]], ["a", "a", "pad0"])
    assert found.flatten().tolist() == pytest.approx([1.0, -1.0, 0.0], abs=1e-5)


def test_no_gradient_and_no_rows():
    rewards = torch.ones(2, 2, requires_grad=True)
    assert not made("grpo")(rewards, torch.ones(2, 2), ["a", "a"], {}).requires_grad
    assert made("grpo")(torch.zeros(0, 3), torch.ones(0, 3), [], {}).shape == (0, 3)


def test_it_is_tried_out_once(monkeypatch):
    calls = []

    @advantages.register("test_token_level_counted", laws={"finite"})
    def counted(rewards, group_ids=None, *, valid=None, factor=1.0):
        calls.append(len(rewards))
        return rewards * factor

    try:
        for _ in range(3):
            call("test_token_level_counted", [[1.0]], ["a"], factor=2.0)
    finally:
        advantages.unregister("test_token_level_counted")
    assert calls == [8, 1, 1, 1]  # on eight made-up rewards, then a batch at a time


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("gdpo", {}, "needs components, and there is one reward"),
        ("spo", {}, "needs a memory, and nothing is saved; choose one of grpo"),
        ("gae", {}, "looks at steps or tokens"),
        ("ngrpo", {}, "give options={max_reward: …}"),
        ("grpo", {"eps": object()}, "options cannot be read"),
        ("grpo", {"eps": -1.0}, "eps is -1.0"),
    ],
)
def test_what_cannot_run_is_refused(name, options, said):
    with pytest.raises(ConfigError) as caught:
        made(name).check(options)
    assert said in str(caught.value)
    assert str(caught.value).startswith("here: ")


def test_what_does_not_fit_is_refused():
    with pytest.raises(EstimatorError, match=r"shape \(2,\) and response_mask \(2,\)"):
        call("grpo", [1.0, 0.0], ["a", "a"])
    with pytest.raises(EstimatorError, match="no group ids, expected one for each of 1 rows"):
        call("grpo", [[1.0]], None)
    with pytest.raises(ValueError, match=r"group_ids has shape \(2,\), expected \(1,\)"):
        call("grpo", [[1.0]], ["a", "a"])


def test_with_options_is_pickled_whole_and_minds_the_flag():
    given = pickle.loads(pickle.dumps(WithOptions(made("grpo"), {"ddof": 1})))
    rewards, mask = torch.tensor([[1.0], [0.0]]), torch.ones(2, 1)
    found, returns = given(rewards, mask, ["a", "a"], values=None, gamma=1.0)
    assert found.equal(made("grpo")(rewards, mask, ["a", "a"], {"ddof": 1}))
    assert returns.equal(found)
    with pytest.raises(ConfigError, match=r"grpo_norm_by_std is False.*choose grouprl_dr_grpo"):
        given(rewards, mask, ["a", "a"], grpo_norm_by_std=False)
