"""Named estimators: values worked out by hand or with fractions, and what they do to easy and hard prompts."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from grouprl import advantages, group_advantages, sampling
from grouprl.errors import InputError

NAN = math.nan


def close(got, want, tolerance=2e-5):
    torch.testing.assert_close(
        torch.as_tensor(got).double(), torch.tensor(want, dtype=torch.float64), rtol=0, atol=tolerance
    )


# ---- cases from public reports --------------------------------------------------------------------------


def test_three_of_eight_right():
    rewards = [1.0] * 3 + [0.0] * 5
    for got, right, wrong in [
        (advantages.grpo(rewards, ddof=1), 1.2076, -0.7246),
        (advantages.grpo(rewards), 1.2910, -0.7746),
        (advantages.dr_grpo(rewards), 0.625, -0.375),
        (advantages.rloo(rewards), 0.7143, -0.4286),
    ]:
        close(got, [right] * 3 + [wrong] * 5, 5e-5)


def test_one_of_four_right():
    rewards = [1.0, 0.0, 0.0, 0.0]
    close(advantages.rloo(rewards), [1.0] + [-1 / 3] * 3)
    close(advantages.maxrl(rewards), [3.0, -1.0, -1.0, -1.0])
    close(advantages.mean_abs(rewards), [2.0] + [-2 / 3] * 3)
    close(advantages.median(rewards), [1.0, 0.0, 0.0, 0.0])
    close(advantages.pass_at_k(rewards, k=2), [1.0] + [-1 / 3] * 3)


def test_a_group_of_one_is_zero_under_every_group_estimator():
    for name in advantages.names():
        estimator = advantages.get(name)
        if "single_is_zero" in estimator.laws:
            extras = {"lengths": [3], "components": [[1.0]]}
            keywords = {key: value for key, value in extras.items() if key in estimator.needs}
            assert estimator(torch.tensor([1.0]), torch.tensor([7]), **keywords).tolist() == [0.0]


def test_rloo_leaves_the_own_reward_out():
    assert advantages.rloo([1.0, 0.0]).tolist() == [1.0, -1.0]


def test_all_right_and_all_wrong_beside_each_other_are_not_compared():
    """Whitened over the batch they would get ±0.87."""
    rewards = [[1.0, 1.0], [0.0, 0.0]]
    for estimate in (advantages.grpo, advantages.batch_std, advantages.rloo, advantages.gpg):
        assert not estimate(rewards).any()


def test_a_dead_group_is_dead_whatever_the_scale():
    rewards = [[1.0, 1.0], [1.0, 0.0]]
    assert sampling.informative(rewards).keep.tolist() == [[False, False], [True, True]]
    got = advantages.batch_std(rewards)
    assert got[0].tolist() == [0.0, 0.0]
    close(got[1], [0.5 / math.sqrt(3 / 16), -0.5 / math.sqrt(3 / 16)])


# ---- what they do to a prompt with pass rate p ----------------------------------------------------------


def weight(name, G, p, **keywords):
    """E[Σ A_i x_i] / G over x_i ~ Bernoulli(p): how hard the prompt is pushed."""
    rows = torch.tensor([[1.0] * c + [0.0] * (G - c) for c in range(G + 1)], dtype=torch.float64)
    push = (advantages.get(name)(rows, **keywords) * rows).sum(-1) / G
    return sum(math.comb(G, c) * p**c * (1 - p) ** (G - c) * push[c].item() for c in range(G + 1))


@pytest.mark.parametrize("G", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("p", [0.0, 0.05, 0.1819, 0.5, 0.9, 1.0])
def test_weights_of_finite_groups(G, p):
    binomial = [math.comb(G, c) * p**c * (1 - p) ** (G - c) for c in range(G + 1)]
    want = {
        "dr_grpo": (G - 1) / G * p * (1 - p),
        "rloo": p * (1 - p),
        "maxrl": 1 - p - (1 - p) ** G,
        "mean_abs": (1 - p**G - (1 - p) ** G) / 2,
        "grpo": sum(b * math.sqrt(c / G * (1 - c / G)) for c, b in enumerate(binomial)),
    }
    for name, value in want.items():
        eps = {} if name in ("dr_grpo", "rloo") else {"eps": 0.0}
        assert weight(name, G, p, **eps) == pytest.approx(value, abs=1e-12), name


def shape(name, G, p, c):
    """(A of a right answer, A of a wrong one) where c of G are right, by the definition; eps 0."""
    share, spread = c / G, math.sqrt(c / G * (1 - c / G))
    if name == "ngrpo":  # one more right answer
        mean = (c + 1) / (G + 1)
        return (
            ((1 - mean) / math.sqrt(mean * (1 - mean)), -math.sqrt(mean / (1 - mean)))
            if c < G
            else (0.0, 0.0)
        )
    if name == "remax":
        return 0.5, -0.5
    if c in (0, G):
        return 0.0, 0.0
    if name == "median":  # more than half alike: MAD 0, not scaled; half and half: MAD 1/2
        middle = 1.0 if 2 * c > G else 0.0 if 2 * c < G else 0.5
        mad = 0.5 if 2 * c == G else 1.0
        return (1 - middle) / mad, -middle / mad
    if name == "quantile":
        base = 0.0 if 10 * (G - c) >= 4 * G else 1.0
        return (1 - base) / spread, -base / spread
    if name == "pass_at_k":  # k = 2
        rho = 1 - math.comb(G - c, 2) / math.comb(G, 2)
        right = math.sqrt((1 - rho) / rho)
        return right, -c / (G - c) * right
    return {"batch_std": ((1 - share) / spread, -share / spread), "opo": (1 - share, -share)}[name]


@pytest.mark.parametrize("G", [2, 3, 4, 8])
@pytest.mark.parametrize("p", [0.05, 0.5, 0.9])
@pytest.mark.parametrize(
    ("name", "keywords"),
    [
        ("median", {"eps": 0.0}),
        ("quantile", {"eps": 0.0}),
        ("pass_at_k", {"k": 2}),
        ("ngrpo", {"eps": 0.0, "max_reward": 1.0}),
        ("batch_std", {"eps": 0.0}),
        ("opo", {"lengths": 7.0}),
        ("remax", {"greedy_rewards": 0.5}),
    ],
)
def test_weights_of_the_others_over_the_binomial(name, keywords, p, G):
    """w = E[Σ A_i (x_i − p)] / G, one group at a time, so that a batch is one group."""
    want = got = 0.0
    for c in range(G + 1):
        chance = math.comb(G, c) * p**c * (1 - p) ** (G - c)
        row = torch.tensor([1.0] * c + [0.0] * (G - c), dtype=torch.float64)
        data = {
            key: torch.full_like(row, value) if key in ("lengths", "greedy_rewards") else value
            for key, value in keywords.items()
        }
        got += chance * (advantages.get(name)(row, **data) * (row - p)).sum().item() / G
        right, wrong = shape(name, G, p, c)
        want += chance * (c * right * (1 - p) - (G - c) * wrong * p) / G
    assert got == pytest.approx(want, abs=1e-12)
    if name in ("median", "remax") and G % 2 == 0:
        assert got == pytest.approx(p * (1 - p), abs=1e-12)


@pytest.mark.parametrize(
    ("name", "baseline", "scale"),
    [
        ("grpo", "mean", "std"),
        ("dr_grpo", "mean", "none"),
        ("rloo", "leave_one_out", "none"),
        ("batch_std", "mean", "batch_std"),
        ("opo", "length_weighted", "none"),
        ("maxrl", "mean", "mean"),
        ("mean_abs", "mean", "mean_abs"),
        ("median", "median", "mad"),
        ("quantile", "quantile", "std"),
    ],
)
def test_a_preset_is_its_pair(name, baseline, scale):
    """The pairs themselves are held against fractions in test_algebra."""
    rewards, ids = torch.tensor([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0]), [0, 0, 0, 0, 1, 1, 1]
    lengths = torch.tensor([1, 2, 3, 4, 5, 6, 7])
    estimator = advantages.get(name)
    given = {"lengths": lengths} if "lengths" in estimator.needs else {}
    eps = {"eps": 0.25} if estimator.accepts("eps") else {}
    want = group_advantages(rewards, ids, baseline=baseline, scale=scale, lengths=lengths, **eps)
    assert torch.equal(estimator(rewards, ids, **given, **eps), want)


# ---- pass@k ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 5, 8, 16])
def test_pass_at_k_by_its_definition(n):
    for k in range(1, n + 1):
        rows = torch.tensor([[1.0] * c + [0.0] * (n - c) for c in range(n + 1)], dtype=torch.float64)
        got = advantages.pass_at_k(rows, k=k)
        for c in range(n + 1):
            rho = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
            s = math.sqrt(rho * (1 - rho))
            right = float(1 - rho) / s if s else 0.0
            wrong = 0.0
            if s:
                wrong = float(1 - rho - Fraction(math.comb(n - c - 1, k - 1), math.comb(n - 1, k - 1))) / s
            close(got[c], [right] * c + [wrong] * (n - c), 1e-12)
            assert abs(got[c].sum().item()) < 1e-12


def test_pass_at_1_is_grpo():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0, 1.0], [0.0, 1.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(advantages.pass_at_k(rewards, k=1), advantages.grpo(rewards, eps=0.0))


def test_pass_at_k_is_not_defined_for_fewer_than_k():
    with pytest.raises(InputError, match="k is 8 with groups of 4"):
        advantages.pass_at_k(torch.rand(3, 4), k=8)
    assert advantages.pass_at_k([1.0, 0.0, 1.0], ["a", "a", "b"], k=3).tolist() == [0.0, 0.0, 0.0]
    for k in (0, -1, 1.5, True):
        with pytest.raises(InputError, match="whole number"):
            advantages.pass_at_k([1.0, 0.0], k=k)


def test_pass_at_k_takes_minus_one_for_wrong():
    assert torch.equal(advantages.pass_at_k([1.0, -1.0, -1.0]), advantages.pass_at_k([1.0, 0.0, 0.0]))


# ---- baselines from outside the group -------------------------------------------------------------------


def test_ngrpo_is_grpo_with_one_more_completion():
    rows = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.5], [1.0, 1.0, 1.0], [0.25, 0.25, 0.25]])
    with_virtual = torch.cat([rows, torch.ones(4, 1)], 1)
    for ddof in (0, 1):
        want = advantages.grpo(with_virtual, ddof=ddof)[:, :3]
        torch.testing.assert_close(advantages.ngrpo(rows, max_reward=1.0, ddof=ddof), want)
    assert advantages.ngrpo([0.0, 0.0], max_reward=1).max() < 0
    assert advantages.ngrpo([0.1] * 7, max_reward=0.1).tolist() == [0.0] * 7
    with pytest.raises(InputError, match="max_reward is missing"):
        advantages.ngrpo([0.0, 1.0])


@pytest.mark.parametrize(
    ("reward", "highest"), [(1e-300, 1.0), (1.0, 1e300), (1e-300, 1e300), (-1e308, 1e308)]
)
def test_ngrpo_over_all_magnitudes(reward, highest):
    rewards = torch.tensor([reward, 0.0], dtype=torch.float64)
    got = advantages.ngrpo(rewards, max_reward=highest, eps=0.0)
    exact = [Fraction(r) for r in (reward, 0.0, highest)]
    m = sum(exact) / 3
    top = max(map(abs, exact))
    std = math.sqrt(sum(((r - m) / top) ** 2 for r in exact) / 3)
    close(got, [float((r - m) / top) / std for r in exact[:2]], 1e-12)


def test_remax_takes_rewards_for_each_completion_or_row():
    rewards = torch.tensor([[1.0, 0.0], [0.5, 1.0]])
    by_row = advantages.remax(rewards, greedy_rewards=torch.tensor([[1.0], [0.0]]))
    assert by_row.tolist() == [[0.0, -1.0], [0.5, 1.0]]
    flat = advantages.remax(rewards.flatten(), [0, 0, 1, 1], greedy_rewards=[1.0, 1.0, 0.0, None])
    assert flat.tolist() == [0.0, -1.0, 0.5, 0.0]
    assert not advantages.remax(torch.tensor([0.1, 0.7]), greedy_rewards=[0.1, 0.7]).any()
    for bad in (None, [1.0], "x", torch.zeros(1, 2)):
        with pytest.raises(InputError, match="greedy_rewards"):
            advantages.remax(rewards, greedy_rewards=bad)


# ---- over the batch -------------------------------------------------------------------------------------


def whitened(values, lengths):
    tokens = np.repeat(np.array(values), lengths)
    return (np.array(values) - tokens.mean()) / tokens.std()


def test_reinforce_plus_plus_is_whitened_over_tokens():
    rewards, lengths = [1.0, 0.0, 0.5, 2.0], [3, 1, 10, 2]
    got = advantages.reinforce_plus_plus(np.array(rewards), [0, 0, 1, 1], lengths=lengths, eps=0.0)
    assert isinstance(got, np.ndarray)
    close(got, whitened(rewards, lengths), 1e-12)
    got = advantages.reinforce_plus_plus_baseline(np.array(rewards), [0, 0, 1, 1], lengths=lengths, eps=0.0)
    close(got, whitened([0.5, -0.5, -0.75, 0.75], lengths), 1e-12)


def test_a_completion_without_tokens_gets_nothing_and_moves_nothing():
    rewards, lengths = [1.0, 0.0, 100.0], [3, 1, 0]
    for estimate in (advantages.reinforce_plus_plus, advantages.reinforce_plus_plus_baseline):
        got = estimate(rewards, ["a", "b", "c"], lengths=lengths)
        assert got[2].item() == 0.0
        assert got.abs().max() < 2.0


def test_a_batch_without_spread_gets_zero():
    for estimate in (
        advantages.reinforce_plus_plus,
        advantages.reinforce_plus_plus_baseline,
        advantages.batch_std,
    ):
        assert not estimate(torch.full((3, 7), 100.1), eps=0.0).any()
    assert not advantages.reinforce_plus_plus(torch.full((21,), 100.1), lengths=range(1, 22), eps=0.0).any()


def test_gpg_counts_the_groups():
    rewards = [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [NAN, None], [0.0, 1.0]]
    assert advantages.gpg(rewards).tolist() == [[1.0, -1.0], [0.0] * 2, [0.0] * 2, [0.0] * 2, [-1.0, 1.0]]
    single = advantages.gpg([1.0, 0.0, 1.0], ["a", "a", "b"])
    assert single.tolist() == [1.0, -1.0, 0.0]


def test_opo_weighs_by_length():
    close(advantages.opo([1.0, 0.0, 0.0], lengths=[2, 1, 1]), [0.5, -0.5, -0.5], 1e-7)


def z(values):
    present = [v for v in values if v is not None]
    m, s = np.mean(present), np.std(present)
    return [0.0 if v is None or s == 0 else (v - m) / s for v in values]


def test_gdpo_sums_standardised_components():
    right = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]]
    style = [[0.3, None, 0.1, 0.9], [5.0, 7.0, None, 9.0]]
    sums = np.array([np.array(z(a)) + 2.0 * np.array(z(b)) for a, b in zip(right, style)])
    want = sums / sums.std()
    got = advantages.gdpo(
        right,
        components={"right": right, "style": style},
        weights={"style": 2.0, "right": 1.0},
        eps=0.0,
    )
    close(got, want.tolist(), 1e-6)
    in_order = advantages.gdpo(right, components=[right, style], weights=[1.0, 2.0], eps=0.0)
    assert torch.equal(got, in_order)


def test_gdpo_edges():
    equal = [[0.1] * 7, [0.7] * 7]
    assert not advantages.gdpo(equal, components=[equal, equal]).any()
    opposite = torch.tensor([[0.1, 0.3, 0.7]])
    assert not advantages.gdpo(opposite, components=[opposite, 1.0 - opposite], eps=0.0).any()
    lost = advantages.gdpo([1.0, 0.0, 0.5], components=[[1.0, 0.0, None]])
    assert lost[2].item() == 0.0
    for keywords, message in [
        ({}, "components are missing"),
        ({"components": []}, "components are missing"),
        ({"components": [[1.0, 0.0]], "weights": [1.0, 2.0]}, "weights are for"),
        ({"components": {"a": [1.0]}}, "components\\['a'\\] has shape"),
    ]:
        with pytest.raises(InputError, match=message):
            advantages.gdpo([1.0, 0.0], **keywords)


# ---- James and Stein ------------------------------------------------------------------------------------


def jspo_by_definition(rows):
    out = []
    for g, row in enumerate(rows):
        others = [r for h, r in enumerate(rows) if h != g]
        means = [sum(r) / len(r) for r in others]
        v = sum(sum((x - m) ** 2 for x in r) / (len(r) - 1) / len(r) for r, m in zip(others, means)) / len(
            means
        )
        centre = sum(means) / len(means)
        s = sum((m - centre) ** 2 for m in means) / len(means)
        shrink = v / (v + s) if v and len(rows) > 2 else Fraction(0)
        for i, x in enumerate(row):
            rest = row[:i] + row[i + 1 :]
            out.append(float(x - (1 - shrink) * sum(rest) / len(rest) - shrink * centre))
    return out


@pytest.mark.parametrize(
    "rows",
    [
        [[1, 0], [1, 1], [0, 0, 1]],
        [[3, 1, 4], [1, 5, 9, 2], [6, 5], [3, 5, 8, 9, 7]],
        [[1, 0], [3, 1]],
        [[1, 1], [1, 1], [1, 1]],
        [[2, 2], [1, 1], [0, 0]],
    ],
)
def test_jspo_by_its_definition(rows):
    exact = [[Fraction(x) for x in row] for row in rows]
    ids = [g for g, row in enumerate(rows) for _ in row]
    flat = [float(x) for row in rows for x in row]
    close(advantages.jspo(np.array(flat), ids), jspo_by_definition(exact), 1e-12)


def test_jspo_is_unbiased():
    """E[Σ A_i (x_i − p)] over every outcome is that of the rewards themselves: G p (1 − p) for each prompt."""
    G, rates = 2, [0.2, 0.5, 0.9]
    outcomes = torch.tensor(list(itertools.product([0.0, 1.0], repeat=3 * G)), dtype=torch.float64)
    outcomes = outcomes.view(-1, 3, G)
    p = torch.tensor(rates, dtype=torch.float64).view(1, 3, 1)
    chance = torch.where(outcomes > 0, p, 1 - p).prod(-1).prod(-1)
    push = torch.stack([(advantages.jspo(x) * (x - p[0])).sum(-1) for x in outcomes])
    gradient = (chance.unsqueeze(-1) * push).sum(0)
    close(gradient, [G * rate * (1 - rate) for rate in rates], 1e-12)


# ---- steps and tokens -----------------------------------------------------------------------------------


def test_gigpo_adds_two_comparisons():
    rewards = torch.tensor([0.0, 1.0, 0.5, 0.0, 0.0, 0.25], dtype=torch.float64)
    episodes = ["a", "a", "b", "b", "c", "c"]
    states = ["s", "t", "s", "u", "s", "t"]
    got = advantages.gigpo(rewards, episode_ids=episodes, state_ids=states, omega=0.5, gamma=0.5, eps=0.0)
    whole = np.repeat(z([1.0, 0.5, 0.25]), 2)
    start = z([0.5, 0.5, 0.125])
    middle = z([1.0, 0.25])
    step = np.array([start[0], middle[0], start[1], 0.0, start[2], middle[1]])
    close(got, (whole + 0.5 * step).tolist(), 1e-12)
    order = torch.tensor([2, 0, 4, 3, 1, 5])  # interleaved; each episode still in time
    shuffled = advantages.gigpo(
        rewards[order],
        [9] * 6,
        episode_ids=[episodes[i] for i in order],
        state_ids=[states[i] for i in order],
        omega=0.5,
        gamma=0.5,
        eps=0.0,
    )
    assert torch.equal(shuffled, got[order])


def test_gigpo_alone_is_grpo():
    rewards = torch.tensor([[1.0, 0.0, 0.3]])
    assert torch.equal(advantages.gigpo(rewards), advantages.grpo(rewards))


def test_gigpo_leaves_an_unscored_episode_out():
    got = advantages.gigpo([1.0, NAN, 1.0, 0.0], episode_ids=[0, 0, 1, 2])
    close(got, [0.0, 0.0, 1.0, -1.0])
    masked = advantages.gigpo([1.0, 5.0, 1.0, 0.0], episode_ids=[0, 0, 1, 2], valid=[True, False, True, True])
    close(masked, [0.0, 0.0, 1.0, -1.0])
    same_names = advantages.gigpo([1.0, 0.0, 5.0, 5.0], ["x", "x", "y", "y"], episode_ids=[0, 1, 0, 1])
    close(same_names, [1.0, -1.0, 0.0, 0.0])
    for keywords in ({"omega": -1.0}, {"gamma": 2.0}, {"scale": "mad"}, {"episode_ids": [1]}):
        with pytest.raises(InputError, match="gigpo"):
            advantages.gigpo([1.0, 0.0], **keywords)


@pytest.mark.parametrize("T", [1, 2, 3, 7, 8, 33])
def test_gae_against_its_recursion(T):
    generator = torch.Generator().manual_seed(T)
    rewards = torch.rand(4, T, generator=generator, dtype=torch.float64)
    values = torch.rand(4, T, generator=generator, dtype=torch.float64)
    mask = torch.rand(4, T, generator=generator) < 0.7
    for own in (torch.ones_like(mask), mask):
        got = advantages.gae(rewards, values, mask=own, gamma=0.9, lam=0.8, last_values=0.5)
        for row in range(4):
            ahead, running = 0.5, 0.0
            for t in reversed(range(T)):
                if not own[row, t]:
                    assert got[row, t] == 0.0
                    continue
                running = rewards[row, t] + 0.9 * ahead - values[row, t] + 0.9 * 0.8 * running
                ahead = values[row, t]
                assert got[row, t].item() == pytest.approx(float(running), abs=1e-12)


def test_gae_passes_padding_over_and_refuses_what_it_cannot_use():
    rewards, values = [[1.0, NAN]], [[0.5, math.inf]]
    assert advantages.gae(rewards, values, mask=[[True, False]]).tolist() == [[0.5, 0.0]]
    assert advantages.gae(rewards, values).tolist() == [[0.0, 0.0]]
    for keywords in ({"gamma": 1.5}, {"lam": -0.1}, {"last_values": NAN}):
        with pytest.raises(InputError, match="gae"):
            advantages.gae([1.0], [1.0], **keywords)
    with pytest.raises(InputError, match="values has shape"):
        advantages.gae([1.0, 2.0], [1.0])
