"""Updates of every objective that a configuration can name, against the equations written plainly in float64."""

import dataclasses
import math

import pytest
import tiny
import torch
from plain_objective import PUBLISHED, Item, in_float64, logprobs_and_entropies, train_plainly
from updates import ADVANTAGES, GROUPS, SCORED, config, relative_error

from grouprl.training.minibatches import split_evenly
from grouprl.training.update import update

SURROGATES = {
    "ppo_clip": {"clip_low": 0.1, "clip_high": 0.15, "dual_clip": 1.3},
    "gspo": {"clip_low": 0.24, "clip_high": 0.65},
    "gspo_token": {"clip_low": 0.24, "clip_high": 0.65},
    "cispo": {"clip_low": 0.1, "clip_high": 0.2},
    "sapo": {"tau_positive": 0.8, "tau_negative": 1.3},
    "gmpo": {"clip_low": 0.1, "clip_high": 0.05},
    "reinforce": {},
}
AGGREGATIONS = ("sequence_mean", "token_mean", "constant", "sequence_sum_mean")
UNSCORED = [True, False, True, True, True, False, True, True, True]
STEP = 0.05
"""Length of the first step: ratios leave the bounds on both sides."""


def cut_off(groups, *which):
    """The same groups, some completions of which met the token limit; `which` counts through all of them."""
    made, i = [], 0
    for group in groups:
        completions = []
        for completion in group.completions:
            reason = "length" if i in which else "stop"
            completions.append(dataclasses.replace(completion, finish_reason=reason))
            i += 1
        made.append(dataclasses.replace(group, completions=tuple(completions)))
    return made


def sampled_by(policy, groups):
    """The same groups with log-probs of a sampler that is off by up to a nat."""
    model, noise = in_float64(policy), torch.Generator().manual_seed(0)
    made = []
    for group in groups:
        completions = []
        for completion in group.completions:
            item = Item(group, completion, 0.0, True, True)
            with torch.no_grad():
                exact = logprobs_and_entropies(model, item, 1.0)[0]
            off = torch.rand(len(exact), generator=noise, dtype=torch.float64) * 2 - 1
            completions.append(dataclasses.replace(completion, logprobs=tuple((exact + off).tolist())))
        made.append(dataclasses.replace(group, completions=tuple(completions)))
    return made


def train(policy, settings, *, lr, groups=GROUPS, advantages=ADVANTAGES, scored=SCORED, reference=None):
    """Gradients of all steps of an update by gradient descent, weights after it; the policy is as before."""
    caught, before = [], [p.detach().clone() for p in policy.parameters()]
    optimizer = torch.optim.SGD(policy.parameters(), lr=lr)
    result = update(
        policy,
        optimizer,
        groups,
        advantages,
        scored,
        settings,
        reference=reference,
        before_step=lambda: caught.append([p.grad.clone() for p in policy.parameters()]),
    )
    after = [p.detach().clone() for p in policy.parameters()]
    with torch.no_grad():
        for p, b in zip(policy.parameters(), before):
            p.copy_(b)
    return caught, after, result


def hold(policy, settings, *, groups=GROUPS, scored=SCORED, reference=None, cuts=None):
    """Every gradient, the final weights and the loss equal those of the plain loop."""
    lr, expected, weights, losses = train_plainly(
        policy,
        groups,
        ADVANTAGES.tolist(),
        scored,
        settings,
        size=STEP,
        cuts=cuts,
        reference=reference,
    )
    found, after, result = train(policy, settings, lr=lr, groups=groups, scored=scored, reference=reference)
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        if any(g.any() for g in other):
            assert relative_error(one, other) <= 1e-4
        else:
            assert not any(g.any() for g in one)
    assert relative_error(after, weights) <= 1e-5
    assert result.metrics["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-4, abs=1e-6)
    return result


@pytest.fixture(scope="module")
def policies():
    made = {family: tiny.policy(family) for family in ("llama", "qwen3", "bloom")}
    made["plain llama"] = tiny.policy("llama")
    made["plain llama"].prefix_obstacle = "asked for"
    assert [p.prefix_obstacle is None for p in made.values()] == [True, True, False, False]
    return made


@pytest.mark.parametrize("path", ["llama", "qwen3", "plain llama", "bloom"])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_every_surrogate_and_aggregation(policies, surrogate, aggregation, path):
    """Two updates, the second off-policy; lengths 1 to 5, a dead group, unscored completions, several micro-batches."""
    settings = config(
        objective={
            "surrogate": surrogate,
            "aggregation": aggregation,
            "updates_per_rollout": 2,
            **SURROGATES[surrogate],
        },
        micro_batch_tokens=14,
    )
    result = hold(policies[path], settings, scored=UNSCORED)
    assert result.updates == 2
    assert result.completions == 5  # of nine, three are dead and one of the others is unscored
    if "clip_low" in SURROGATES[surrogate]:
        assert 0 < result.metrics["clip_low_share"] + result.metrics["clip_high_share"] < 0.5


@pytest.mark.parametrize("surrogate", PUBLISHED)
def test_options_that_were_not_given_are_the_published_ones(policies, surrogate):
    settings = config(objective={"surrogate": surrogate, "updates_per_rollout": 2})
    lr, expected, *_ = train_plainly(
        policies["llama"], GROUPS, ADVANTAGES.tolist(), SCORED, settings, size=STEP
    )
    found, _, result = train(policies["llama"], settings, lr=lr)
    difference = max(float((a - b).abs().max()) for a, b in zip(found[1], expected[1]))
    assert difference <= 1e-4 * max(float(b.abs().max()) for b in expected[0])  # gspo's second is all clipped
    assert result.metrics["ratio_max"] > 1.2


VARIANTS = {
    "k1 in the loss": {"beta": 0.3, "kl": "k1"},
    "k2 in the loss": {"beta": 0.3, "kl": "k2"},
    "k3 in the loss": {"beta": 0.3, "kl": "k3"},
    "k1 weighted": {"beta": 0.3, "kl": "k1", "kl_weighted": True},
    "k3 weighted": {"beta": 0.3, "kl": "k3", "kl_weighted": True, "aggregation": "token_mean"},
    "entropy bonus": {"entropy_weight": 0.2},
    "entropy bonus of REINFORCE": {"entropy_weight": 0.2, "surrogate": "reinforce"},
    "informative": {"denominator": "informative", "aggregation": "token_mean"},
    "informative with KL": {"denominator": "informative", "beta": 0.3, "entropy_weight": 0.1},
    "overlong filter": {"overlong_filter": True},
    "overlong filter by tokens": {"overlong_filter": True, "aggregation": "token_mean"},
    "overlong filter, constant": {"overlong_filter": True, "aggregation": "constant", "entropy_weight": 0.1},
    "truncated": {"correction": "truncated", "correction_high": 1.2},
    "masked": {"correction": "masked", "correction_low": 0.6, "correction_high": 1.7},
    "truncated sequences": {
        "correction": "truncated",
        "correction_level": "sequence",
        "correction_high": 1.2,
    },
    "masked sequences": {
        "correction": "masked",
        "correction_level": "sequence",
        "correction_low": 0.5,
        "surrogate": "sapo",
    },
    "stale REINFORCE, masked": {"surrogate": "reinforce", "correction": "masked"},
    "everything": {
        "surrogate": "cispo",
        "aggregation": "token_mean",
        "beta": 0.1,
        "kl": "k2",
        "kl_weighted": True,
        "entropy_weight": 0.05,
        "correction": "truncated",
        "correction_high": 1.2,
        "overlong_filter": True,
        "denominator": "informative",
    },
}


@pytest.mark.parametrize("path", ["llama", "bloom"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_term_and_weight(policies, variant, path):
    """With a reference that differs, completions cut off in a live and in the dead group, one of them unscored."""
    settings = config(objective={"updates_per_rollout": 2, **VARIANTS[variant]}, micro_batch_tokens=14)
    reference = tiny.policy("llama" if path == "llama" else "bloom", seed=1)
    result = hold(
        policies[path],
        settings,
        groups=sampled_by(policies[path], cut_off(GROUPS, 0, 1, 3)),
        scored=UNSCORED,
        reference=reference if settings.objective.beta else None,
    )
    if settings.objective.correction != "auto":
        assert 0 < result.metrics["sampler_corrected_share"] < 1


@pytest.mark.parametrize(("mini_batches", "cuts"), [(2, [[0, 1], [2]]), (3, [[0], [1], [2]])])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_mini_batches_times_updates_are_the_plain_loop(policies, aggregation, mini_batches, cuts):
    """Each divides by its own count; old log-probs are from before the first step. Group 1 is dead: a step of 0."""
    settings = config(
        objective={
            "aggregation": aggregation,
            "mini_batches": mini_batches,
            "updates_per_rollout": 2,
            "clip_low": 0.1,
            "clip_high": 0.15,
        },
        micro_batch_tokens=14,
    )
    result = hold(policies["llama"], settings, scored=UNSCORED, cuts=cuts)
    assert result.updates == 2 * mini_batches


def test_mini_batches_with_kl_and_entropy_are_the_plain_loop(policies):
    settings = config(
        objective={
            "surrogate": "reinforce",
            "mini_batches": 3,
            "updates_per_rollout": 2,
            "beta": 0.2,
            "entropy_weight": 0.1,
            "aggregation": "sequence_sum_mean",
        }
    )
    hold(policies["llama"], settings, cuts=[[0], [1], [2]], reference=tiny.policy(seed=1))


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("budget", [1, 8])
def test_micro_batches_of_any_size_change_nothing(policies, surrogate, budget):
    """Neither gradient nor metrics, of a loss with every term."""
    objective = {
        "surrogate": surrogate,
        "aggregation": "token_mean",
        "denominator": "informative",
        "updates_per_rollout": 2,
        "beta": 0.1,
        "entropy_weight": 0.1,
        **SURROGATES[surrogate],
    }
    reference = tiny.policy(seed=1)
    found = [
        train(
            policies["llama"],
            config(objective=objective, micro_batch_tokens=tokens),
            lr=0.05,
            scored=UNSCORED,
            reference=reference,
        )
        for tokens in (1000, budget)
    ]
    (whole, _, one), (parts, _, many) = found
    for a, b in zip(parts, whole):
        assert relative_error(a, b) <= 1e-5
    assert many.metrics == pytest.approx(one.metrics, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("objective", "forwards"),
    [
        ({}, 1),
        ({"entropy_weight": 0.1}, 1),
        ({"updates_per_rollout": 3}, 3),
        ({"mini_batches": 3}, 2 + 1),  # the second group has nothing to run
        ({"mini_batches": 3, "updates_per_rollout": 2}, 2 * 2 + 1),
    ],
)
def test_old_logprobs_cost_no_forward_where_the_first_step_has_them(
    policies, objective, forwards, monkeypatch
):
    policy, calls = policies["llama"], []
    real = type(policy).hidden_states
    monkeypatch.setattr(
        type(policy), "hidden_states", lambda *a, **k: calls.append(None) or real(*a, **k), raising=True
    )
    train(policy, config(objective=objective), lr=0.0)
    assert len(calls) == forwards


def test_the_first_step_has_ratio_one_and_clips_nothing_whatever_follows(policies):
    """lr = 0: so have all others, up to the rounding of a forward that the same weights give twice."""
    settings = config(objective={"mini_batches": 2, "updates_per_rollout": 2})
    *_, result = train(policies["llama"], settings, lr=0.0)
    assert result.metrics["ratio_mean"] == pytest.approx(1, abs=1e-6)
    assert result.metrics["ratio_max"] == pytest.approx(1, abs=1e-6)
    assert result.metrics["kl_old"] == pytest.approx(0, abs=1e-9)
    assert result.metrics["clip_low_share"] == result.metrics["clip_high_share"] == 0


def test_what_the_sampler_is_compared_with_is_the_trainer_before_the_first_step(policies):
    """So mini-batches, whose weights move in between, change nothing of it."""
    one = train(policies["llama"], config(), lr=0.1)[2]
    several = train(policies["llama"], config(objective={"mini_batches": 3}), lr=0.1)[2]
    assert several.trainer_logprobs_mean == pytest.approx(one.trainer_logprobs_mean, abs=1e-5, nan_ok=True)
    assert several.metrics["kl_sampler_trainer"] == pytest.approx(one.metrics["kl_sampler_trainer"], rel=1e-5)


def test_a_term_without_the_advantage_runs_every_scored_completion(policies):
    for objective, completions in (
        ({}, 6),
        ({"entropy_weight": 0.1}, 9),
        ({"beta": 0.1}, 9),
        ({"beta": 0.1, "kl_in": "reward"}, 6),  # it is in the advantages
        ({"beta": 0.1, "denominator": "informative"}, 6),
    ):
        *_, result = train(
            policies["llama"], config(objective=objective), lr=0.0, reference=tiny.policy(seed=1)
        )
        assert result.completions == completions, objective


@pytest.mark.parametrize(
    ("objective", "denominator"),
    [
        ({}, 8),
        ({"aggregation": "token_mean"}, 3 + 5 + 2 + 1 + 2 + 3 + 1 + 1),
        ({"aggregation": "constant"}, 8 * 16),
        ({"aggregation": "sequence_sum_mean", "denominator": "informative"}, 5),
        ({"aggregation": "token_mean", "denominator": "informative"}, 3 + 5 + 3 + 1 + 1),
        ({"aggregation": "token_mean", "overlong_filter": True}, 5 + 2 + 1 + 2 + 3 + 1 + 1),
        ({"overlong_filter": True}, 8),
        ({"mini_batches": 3}, 8),
    ],
)
def test_what_the_loss_is_divided_by_is_recorded(policies, objective, denominator):
    """Completion 1 is unscored, 0 is cut off, the second group is dead, max_new_tokens is 16."""
    scored = [i != 1 for i in range(9)]
    *_, result = train(
        policies["llama"], config(objective=objective), lr=0.0, groups=cut_off(GROUPS, 0), scored=scored
    )
    assert result.metrics["loss_denominator"] == denominator
    if objective.get("overlong_filter"):
        assert result.metrics["overlong_filtered_share"] == 1 / 8


def test_a_truncated_completion_leaves_the_tokens_of_both_sides(policies):
    """Two of four tokens each, the second cut off: at ratio 1 and A = −1 the loss is 4 / 4, not 4 / 8."""
    groups = cut_off([tiny.group([5, 6], [[9, 10, 11, 12], [13, 14, 15, 16]])], 1)
    settings = config(objective={"overlong_filter": True, "aggregation": "token_mean"})
    *_, result = train(
        policies["llama"],
        settings,
        lr=0.0,
        groups=groups,
        advantages=torch.tensor([-1.0, -1.0]),
        scored=[True, True],
    )
    assert result.metrics["loss"] == pytest.approx(1.0)


def test_where_everything_was_cut_off_no_update_is_made_and_it_says_so(policies):
    for aggregation in AGGREGATIONS:
        settings = config(objective={"overlong_filter": True, "aggregation": aggregation})
        found, _, result = train(policies["llama"], settings, lr=0.1, groups=cut_off(GROUPS, *range(9)))
        assert found == []
        assert result.updates == 0
        assert result.warnings == [
            "every scored completion was cut off at max_new_tokens, and overlong_filter leaves those out (raise "
            "--max-new-tokens): no update was made"
        ]


def test_a_mini_batch_without_a_score_is_passed_over_and_it_says_so(policies):
    settings = config(objective={"mini_batches": 3, "updates_per_rollout": 2})
    scored = [True] * 3 + [False] * 3 + [True] * 3
    *_, result = train(policies["llama"], settings, lr=0.1, scored=scored)
    assert result.updates == 4
    assert result.warnings == ["mini-batch 2 of 3: nothing was scored: no update was made of it"]


def test_fewer_groups_than_mini_batches_make_a_step_each(policies):
    """As where dynamic sampling found no more."""
    settings = config(objective={"mini_batches": 8})
    *_, result = train(policies["llama"], settings, lr=0.1)
    assert result.updates == 3


def test_only_dead_groups_count_as_a_step_of_zero_also_when_informative(policies):
    settings = config(objective={"denominator": "informative"})
    found, _, result = train(policies["llama"], settings, lr=0.1, advantages=torch.zeros(9))
    assert result.updates == 1
    assert result.metrics["loss"] == 0
    assert not any(g.any() for g in found[0])


def test_clip_shares_and_ratios_are_those_of_the_tokens():
    """By hand, from the log-probs before and after a step of the one policy."""
    policy = tiny.policy()
    objective = {"clip_low": 0.1, "clip_high": 0.15, "dual_clip": 1.2, "updates_per_rollout": 2}
    lr = 0.2
    _, after, result = train(policy, config(objective={**objective, "updates_per_rollout": 1}), lr=lr)
    moved = tiny.policy()
    with torch.no_grad():
        for p, new in zip(moved.parameters(), after):
            p.copy_(new)
    *_, result = train(policy, config(objective=objective), lr=lr)
    ratios, low, high, dual, tokens = [], 0, 0, 0, 0
    members = [(g, c) for g in GROUPS for c in g.completions]
    for (g, c), a in zip(members, ADVANTAGES.tolist()):
        if a == 0:
            continue
        ids = torch.tensor([[*g.prompt_token_ids, *c.token_ids]])
        with torch.no_grad():
            new, old = (
                m.model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1) for m in (moved, policy)
            )
        for t, token in enumerate(c.token_ids):
            place = len(g.prompt_token_ids) - 1 + t
            r = math.exp(float(new[place, token] - old[place, token]))
            ratios.append(r)
            tokens += 1
            low += a < 0 and r < 0.9
            high += a > 0 and r > 1.15
            dual += a < 0 and r > 1.2
    found = result.metrics
    assert low
    assert high
    assert found["clip_low_share"] == pytest.approx(low / (2 * tokens))  # of both updates; the first has none
    assert found["clip_high_share"] == pytest.approx(high / (2 * tokens))
    assert found["clip_dual_share"] == pytest.approx(dual / (2 * tokens))
    assert found["ratio_mean"] == pytest.approx((tokens + sum(ratios)) / (2 * tokens), rel=1e-4)
    assert found["ratio_max"] == pytest.approx(max(ratios), rel=1e-4)


def test_split_evenly():
    assert [[*r] for r in split_evenly(7, 3)] == [[0, 1, 2], [3, 4], [5, 6]]
    assert split_evenly(0, 2) == []
