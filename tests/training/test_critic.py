"""PPO's critic: targets by hand, gradients against plain autograd in float64."""

from __future__ import annotations

import pytest
import tiny
import torch
from updates import GROUPS, config, relative_error

from grouprl.tasks import Scores
from grouprl.training.critic import Critic
from grouprl.training.optimizer import make_optimizer
from grouprl.training.update import update

REWARDS = [1.0, 0.0, 0.5, None, 2.0, 0.0, -1.0, 1.0, 0.25]
PPO = {"advantage": {"estimator": "gae", "options": {"gamma": 0.9, "lam": 0.8}}}


def scores(rewards=REWARDS):
    return Scores(
        rewards=list(rewards), components={"task": list(rewards)}, errors=0, nonfinite=0, error_examples=[]
    )


def critic_of(policy, *, seed=0, **sections):
    """A critic whose head says something."""
    made = Critic(policy, config(**{**PPO, **sections}))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        made.head.linear.weight.copy_(0.3 * torch.randn(made.head.linear.weight.shape, generator=generator))
        made.head.linear.bias.fill_(0.1)
    return made


def in_float64(model):
    """The same weights in a fresh model of transformers, without any of our layers."""
    plain = type(model)(model.config).double().eval()
    plain.load_state_dict({k: v.double() for k, v in model.state_dict().items()}, strict=False)
    plain.tie_weights()
    return plain


def plain_targets(values, reward, gamma, lam):
    """GAE as its recursion reads, for one sequence with a reward at its end."""
    advantages, ahead, later = [], 0.0, 0.0
    for t in reversed(range(len(values))):
        r = reward if t == len(values) - 1 else 0.0
        delta = r + gamma * ahead - float(values[t])
        later = delta + gamma * lam * later
        advantages.insert(0, later)
        ahead = float(values[t])
    return torch.tensor(advantages, dtype=torch.float64)


def plain_gradient(critic, *, gamma, lam, whiten, weight, aggregation="sequence_mean", temperature=1.0):
    """The first PPO update's gradient, one sequence at a time: the policy's, and the critic's own."""
    model = in_float64(critic.policy.model)
    own = critic.backbone is not critic.policy
    body = in_float64(critic.backbone.model) if own else model
    head = torch.nn.Linear(*reversed(critic.head.linear.weight.shape)).double()
    head.load_state_dict({k: v.double() for k, v in critic.head.linear.state_dict().items()})
    kept = [
        (g, c, r)
        for (g, c), r in zip(((g, c) for g in GROUPS for c in g.completions), REWARDS)
        if r is not None
    ]
    found = []
    for g, c, reward in kept:
        ids = torch.tensor([[*g.prompt_token_ids, *c.token_ids]])
        start = len(g.prompt_token_ids)
        z = model(input_ids=ids, use_cache=False).logits[0, start - 1 : -1] / temperature
        logprobs = z.log_softmax(-1).gather(-1, ids[0, start:, None])[:, 0]
        hidden = body.base_model(input_ids=ids, use_cache=False).last_hidden_state[0, start - 1 : -1]
        values = head(hidden)[:, 0]
        advantages = plain_targets(values.detach(), reward, gamma, lam)
        found.append((logprobs, values, advantages, advantages + values.detach()))
    every = torch.cat([a for _, _, a, _ in found])
    mean, std = (every.mean(), every.std(correction=0) + 1e-8) if whiten else (0.0, 1.0)
    total = torch.zeros((), dtype=torch.float64)
    for logprobs, values, advantages, returns in found:
        per_token = -(advantages - mean) / std * logprobs + weight * 0.5 * (values - returns).square()
        total = total + (per_token.mean() if aggregation == "sequence_mean" else per_token.sum())
    (total / (len(kept) if aggregation == "sequence_mean" else len(every))).backward()
    policy = [p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters()]
    theirs = [p.grad for p in head.parameters()]
    if own:
        theirs += [p.grad for p in body.base_model.parameters()]
    return policy, theirs


def update_gradient(policy, critic, *, given=None):
    """The same by `update`."""
    settings = critic.config
    targets = critic.targets(GROUPS, given or scores())
    caught = []

    def catch():
        for parameters in (policy.parameters(), critic.parameters()):
            caught.append([p.grad.clone() for p in parameters])

    optimizer = make_optimizer(policy, settings.optimizer, critic=critic.parameters(), critic_lr=1e-3)
    result = update(
        policy,
        optimizer,
        GROUPS,
        targets.means,
        [r is not None for r in REWARDS],
        settings,
        critic=critic,
        targets=targets,
        before_step=catch,
    )
    return caught[0], caught[1], result


def test_targets_of_a_critic_that_knows_nothing_are_the_rewards():
    """V = 0, γ = λ = 1: every token's advantage and return is its completion's reward."""
    policy = tiny.policy("llama")
    settings = config(advantage={"estimator": "gae"}, critic={"whiten_advantages": False})
    targets = Critic(policy, settings).targets(GROUPS, scores())
    lengths = [len(c.token_ids) for g in GROUPS for c in g.completions]
    for row, returns, reward, n in zip(targets.advantages, targets.returns, REWARDS, lengths):
        expected = [0.0 if reward is None else reward] * n
        assert row[:n].tolist() == expected
        assert returns[:n].tolist() == expected
        assert not row[n:].any()
    assert targets.means.tolist() == [0.0 if r is None else r for r in REWARDS]
    assert targets.first_values == [None if r is None else 0.0 for r in REWARDS]


def test_whitened_advantages_have_mean_0_and_std_1_over_tokens():
    targets = critic_of(tiny.policy("llama")).targets(GROUPS, scores())
    tokens = targets.advantages[targets.mask].double()
    assert tokens.mean().item() == pytest.approx(0, abs=1e-6)
    assert tokens.std(correction=0).item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("family", ["llama", "gemma2", "mamba"])
@pytest.mark.parametrize("backbone", ["shared", "own"])
@pytest.mark.parametrize(
    ("whiten", "aggregation", "micro"), [(True, "sequence_mean", 1000), (False, "token_mean", 4)]
)
def test_the_first_gradient_is_that_of_plain_autograd(family, backbone, whiten, aggregation, micro):
    policy = tiny.policy(family)
    sections = {
        "critic": {"whiten_advantages": whiten, "value_weight": 0.7, "critic_backbone": backbone},
        "objective": {"aggregation": aggregation},
        "micro_batch_tokens": micro,
    }
    critic = critic_of(policy, **sections)
    expected, theirs = plain_gradient(
        critic, gamma=0.9, lam=0.8, whiten=whiten, weight=0.7, aggregation=aggregation
    )
    found, found_theirs, result = update_gradient(policy, critic)
    assert result.updates == 1
    assert relative_error(found, [g.float() for g in expected]) < 1e-4
    assert relative_error(found_theirs, [g.float() for g in theirs]) < 1e-4


def test_values_are_clipped_from_the_second_update_on():
    """With a bound of 1e-9 what the first update moved is held back in the second, wherever that is nearer its goal."""
    policy = tiny.policy("llama")
    sections = {"critic": {"value_clip": 1e-9}, "objective": {"updates_per_rollout": 2}}
    *_, result = update_gradient(policy, critic_of(policy, **sections))
    assert result.updates == 2
    assert 0 < result.metrics["value_clip_share"] <= 0.5  # the first update's tokens are not clipped
    *_, free = update_gradient(
        tiny.policy("llama"), critic_of(tiny.policy("llama"), critic={"value_clip": 0})
    )
    assert free.metrics["value_clip_share"] == 0


def test_explained_variance_is_that_of_returns_by_values():
    """γ = λ = 1, so a token's return is its completion's reward."""
    policy = tiny.policy("llama")
    critic = critic_of(policy, advantage={"estimator": "gae", "options": {}})
    *_, result = update_gradient(policy, critic)
    targets = critic_of(tiny.policy("llama"), advantage={"estimator": "gae", "options": {}}).targets(
        GROUPS, scores()
    )
    values = targets.old_values[targets.mask].double()
    rewards = torch.tensor([0.0 if r is None else r for r in REWARDS], dtype=torch.float64)
    returns = rewards[:, None].expand(targets.mask.shape)[targets.mask]
    expected = 1 - (returns - values).var(correction=0) / returns.var(correction=0)
    assert result.metrics["explained_variance"] == pytest.approx(float(expected), abs=1e-4)
    assert result.metrics["return_mean"] == pytest.approx(float(returns.mean()), abs=1e-5)
    assert result.metrics["value_mean"] == pytest.approx(float(values.mean()), abs=1e-5)


@pytest.mark.parametrize("backbone", ["shared", "own"])
def test_saved_and_loaded_it_is_the_same(tmp_path, backbone):
    policy = tiny.policy("llama")
    critic = critic_of(policy, critic={"critic_backbone": backbone})
    critic.save(tmp_path)
    other = Critic(policy, critic.config)
    other.load(tmp_path)
    for a, b in zip(critic.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
