"""The update: its gradient against a plain reference, and everything that must not change it."""

import dataclasses
import math

import pytest
import tiny
import torch
from updates import ADVANTAGES, GROUPS, SCORED, config, gradient, reference_gradient, relative_error

from grouprl.training import Config
from grouprl.training.config import OptimizerConfig
from grouprl.training.optimizer import learning_rate, make_optimizer
from grouprl.training.update import update


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "granite"])
@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean"])
def test_gradient_equals_the_plain_reference(family, aggregation):
    """With a dead group, a group of prompts of one token, and completions of one to five tokens."""
    policy = tiny.policy(family)
    found, _ = gradient(policy, objective={"aggregation": aggregation})
    assert relative_error(found, reference_gradient(policy, aggregation=aggregation)) <= 1e-4


def test_gradient_at_a_temperature():
    policy = tiny.policy()
    found, _ = gradient(policy, rollout={"temperature": 0.7})
    assert relative_error(found, reference_gradient(policy, temperature=0.7)) <= 1e-4


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean"])
@pytest.mark.parametrize("budget", [1, 8, 14])
def test_micro_batches_of_any_size_give_the_same_gradient(budget, aggregation):
    """A budget of 1 is a completion at a time; 8 is less than the first group; 14 mixes groups."""
    policy = tiny.policy()
    whole, one = gradient(policy, objective={"aggregation": aggregation})
    parts, many = gradient(policy, objective={"aggregation": aggregation}, micro_batch_tokens=budget)
    assert relative_error(parts, whole) <= 1e-5
    assert many.metrics["loss"] == pytest.approx(one.metrics["loss"], abs=1e-6)


def test_unscored_completions_leave_numerator_and_denominator():
    policy = tiny.policy()
    scored = [True, False, True, True, True, True, True, True, False]
    found, result = gradient(policy, scored=scored)
    assert relative_error(found, reference_gradient(policy, scored=scored)) <= 1e-4
    assert result.trainer_logprobs_mean[1] is None


def test_a_completion_with_advantage_zero_takes_no_part_and_changes_nothing():
    """The three of group b are not run; the loss still divides by nine."""
    policy = tiny.policy()
    _, result = gradient(policy)
    assert result.completions == 6
    assert [m is None for m in result.trainer_logprobs_mean] == [False] * 3 + [True] * 3 + [False] * 3


def test_with_a_kl_term_every_completion_takes_part():
    policy, other = tiny.policy(), tiny.policy(seed=1)
    _, result = gradient(policy, reference=other, objective={"beta": 0.1})
    assert result.completions == 9
    assert result.metrics["kl_ref"] > 0


def test_kl_to_oneself_is_zero_and_changes_no_gradient():
    policy = tiny.policy()
    found, result = gradient(policy, reference=policy, objective={"beta": 0.1})
    assert result.metrics["kl_ref"] == pytest.approx(0, abs=1e-7)
    assert relative_error(found, reference_gradient(policy)) <= 1e-4


def test_all_dead_still_steps_with_gradient_zero():
    """AdamW with weight decay moves the weights by −lr · decay · w, as after a backward that gave zeros."""
    policy = tiny.policy()
    settings = config(optimizer={"weight_decay": 0.5})
    before = policy.model.model.layers[0].mlp.up_proj.weight.detach().clone()
    optimizer = make_optimizer(policy, settings.optimizer)
    result = update(policy, optimizer, GROUPS, torch.zeros(9), SCORED, settings)
    assert result.updates == 1
    assert result.completions == 0
    assert result.metrics["loss"] == 0
    after = policy.model.model.layers[0].mlp.up_proj.weight.detach()
    torch.testing.assert_close(after, before * (1 - 1e-2 * 0.5))


def test_nothing_scored_is_a_skipped_update_that_says_so():
    policy = tiny.policy()
    settings = config(optimizer={"weight_decay": 0.5})
    before = [p.detach().clone() for p in policy.parameters()]
    optimizer = make_optimizer(policy, settings.optimizer)
    result = update(policy, optimizer, GROUPS, torch.zeros(9), [False] * 9, settings)
    assert result.updates == 0
    assert result.warnings == ["nothing was scored: no update was made"]
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters()))


def test_first_update_on_fresh_samples_clips_nothing_and_has_a_gradient():
    found, result = gradient(tiny.policy())
    assert result.metrics["ratio_mean"] == 1
    assert result.metrics["clip_low_share"] == result.metrics["clip_high_share"] == 0
    assert sum(float(g.abs().sum()) for g in found) > 0


def test_two_updates_a_rollout_leave_the_clip_range():
    """The second update is off-policy: with a large step its ratios pass the clips on both sides."""
    policy = tiny.policy()
    settings = config(objective={"updates_per_rollout": 2}, optimizer={"lr": 0.05})
    result = update(policy, make_optimizer(policy, settings.optimizer), GROUPS, ADVANTAGES, SCORED, settings)
    assert result.metrics["clip_low_share"] > 0
    assert result.metrics["clip_high_share"] > 0
    assert result.metrics["kl_old"] > 0


def test_the_first_of_two_updates_is_the_only_one_of_one():
    """Old log-probs from a forward of their own give ratio 1, hence the same first gradient."""
    policy = tiny.policy()
    one, _ = gradient(policy)
    two, _ = gradient(policy, objective={"updates_per_rollout": 2})
    assert relative_error(two, one) <= 1e-5


def test_a_gradient_that_is_not_finite_makes_no_update():
    policy = tiny.policy()
    settings = config()
    with torch.no_grad():
        policy.model.model.layers[0].mlp.up_proj.weight[0, 0] = math.nan
    before = policy.model.lm_head.weight.detach().clone()
    result = update(policy, make_optimizer(policy, settings.optimizer), GROUPS, ADVANTAGES, SCORED, settings)
    assert result.updates == 0
    assert "norm is nan" in result.warnings[0]
    assert torch.equal(before, policy.model.lm_head.weight)


def test_gradient_clipping():
    policy = tiny.policy()
    free, result = gradient(policy)
    clipped, _ = gradient(policy, optimizer={"max_grad_norm": result.grad_norm / 2})
    assert relative_error([2 * g for g in clipped], free) <= 1e-4


def test_weight_decay_spares_norms():
    policy = tiny.policy()
    groups = make_optimizer(policy, OptimizerConfig(weight_decay=0.1)).param_groups
    assert [g["weight_decay"] for g in groups] == [0.1, 0.0]
    assert all(p.ndim >= 2 for p in groups[0]["params"])
    assert all(p.ndim == 1 for p in groups[1]["params"])


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447]),  # (1 + cos(π k / 4)) / 2
    ],
)
def test_learning_rate(schedule, expected):
    optimizer = dataclasses.replace(Config().optimizer, lr=1.0, schedule=schedule, warmup_steps=2)
    found = [learning_rate(optimizer, step=s, steps=6) for s in range(1, 7)]
    assert found == pytest.approx(expected, abs=1e-6)


def test_sampler_mismatch_is_measured():
    """The groups here claim log-prob −1 for every token: k3 of d = −1 − log π, averaged over tokens."""
    policy = tiny.policy()
    _, result = gradient(policy)
    members = [(i, g, c) for i, (g, c) in enumerate((g, c) for g in GROUPS for c in g.completions)]
    total, count = 0.0, 0
    for i, g, c in members:
        if ADVANTAGES[i] == 0:
            continue
        ids = torch.tensor([[*g.prompt_token_ids, *c.token_ids]])
        with torch.no_grad():
            logprobs = policy.model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
        for t, token in enumerate(c.token_ids):
            d = -1.0 - float(logprobs[len(g.prompt_token_ids) - 1 + t, token])
            total += math.exp(-d) - 1 + d
            count += 1
    assert result.metrics["kl_sampler_trainer"] == pytest.approx(total / count, rel=1e-4)
