"""What holds for every surrogate, aggregation and KL: against the equations written plainly in float64, over cuts of
the batch, at extremes, and on fresh samples."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grouprl.objectives import kl_penalty, loss_denominator, policy_loss
from grouprl.objectives.aggregations import AGGREGATIONS
from grouprl.objectives.kl import KL_ESTIMATORS
from grouprl.objectives.surrogates import SURROGATES

pytestmark = pytest.mark.filterwarnings("ignore:policy_loss")  # tested in TestWarnings

INF, NAN = math.inf, math.nan
MAX_TOKENS = 9
OPTIONS: dict[str, dict[str, float]] = {
    "ppo_clip": {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 2.5},
    "gspo": {"clip_low": 0.1, "clip_high": 0.2},
    "gspo_token": {"clip_low": 0.1, "clip_high": 0.2},
    "cispo": {"clip_low": 0.3, "clip_high": 0.9},
    "sapo": {"tau_positive": 1.0, "tau_negative": 1.05},
    "gmpo": {"clip_low": 0.4, "clip_high": 0.3},
    "reinforce": {},
}


def completion_losses(name: str, new: Tensor, old: Tensor, A: Tensor) -> list[Tensor]:
    """The loss of each token of one completion, which has nothing but trained tokens. No clamp, no mask."""
    o, n = OPTIONS[name], len(new)
    r = [torch.exp(new[t] - old[t]) for t in range(n)]

    def clip(x: Tensor) -> Tensor:
        return torch.clip(x, 1 - o["clip_low"], 1 + o["clip_high"])

    def ppo(x: Tensor, a: Tensor, dual: float = INF) -> Tensor:
        loss = torch.max(-x * a, -clip(x) * a)
        return torch.min(loss, -dual * a) if a < 0 and dual < INF else loss

    if name == "ppo_clip":
        return [ppo(r[t], A[t], o["dual_clip"]) for t in range(n)]
    if name == "gspo":
        s = torch.stack(r).prod() ** (1 / n)
        return [ppo(s, A[t]) for t in range(n)]
    if name == "gspo_token":
        s = (torch.stack(r).prod() ** (1 / n)).detach()
        return [ppo(s * new[t].exp() / new[t].exp().detach(), A[t]) for t in range(n)]
    if name == "cispo":
        return [-clip(r[t]).detach() * A[t] * new[t] for t in range(n)]
    if name == "sapo":
        tau = [o["tau_positive"] if a > 0 else o["tau_negative"] for a in A]
        return [-4 / tau[t] / (1 + torch.exp(-tau[t] * (r[t] - 1))) * A[t] for t in range(n)]
    if name == "gmpo":
        low, high = math.exp(-o["clip_low"]), math.exp(o["clip_high"])
        cut = [torch.clip(x, max=high) if a > 0 else torch.clip(x, min=low) for x, a in zip(r, A)]
        return [-A.mean() * torch.stack(cut).prod() ** (1 / n)] * n
    assert name == "reinforce"
    return [-A[t] * new[t] for t in range(n)]


def plain_kl(name: str, d: Tensor) -> Tensor:
    return {"k1": d, "k2": d**2 / 2, "k3": torch.exp(-d) - 1 + d}[name]


def straightforward(
    batch: dict[str, Tensor], surrogate: str, aggregation: str, choice: dict[str, Any]
) -> Tensor:
    """The objective, completion by completion and token by token."""
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    rows = len(batch["logprobs"])
    for i in range(rows):
        kept = batch["completion_mask"][i].nonzero()[:, 0].tolist()
        if not kept:
            continue
        new, old, ref, sampler, entropy = (
            batch[k][i][kept]
            for k in ("logprobs", "old_logprobs", "ref_logprobs", "sampler_logprobs", "entropy")
        )
        A = batch["advantages"][i]
        A = A[kept] if A.dim() else A.expand(len(kept))
        w = [float(torch.exp(old[t] - sampler[t])) for t in range(len(kept))]
        if choice["correction_level"] == "sequence":
            w = [math.prod(w)] * len(kept)
        low, high = choice["correction_low"], choice["correction_high"]
        if choice["correction"] == "truncated":
            w = [min(x, high) for x in w]
        elif choice["correction"] == "masked":
            w = [x if low <= x <= high else 0.0 for x in w]
        else:
            w = [1.0] * len(kept)
        losses = []
        for t, loss in enumerate(completion_losses(surrogate, new, old, A)):
            kl = plain_kl(choice["kl"], new[t] - ref[t])
            if choice["kl_weighted"]:
                kl = torch.exp(new[t] - old[t]) * kl
            losses.append(w[t] * loss + choice["beta"] * kl - choice["entropy_weight"] * entropy[t])
        tokens += len(losses)
        summed = torch.stack(losses).sum()
        total = total + (summed / len(losses) if aggregation == "sequence_mean" else summed)
    return (
        total
        / {
            "sequence_mean": rows,
            "token_mean": max(tokens, 1),
            "constant": rows * MAX_TOKENS,
            "sequence_sum_mean": rows,
        }[aggregation]
    )


def random_batch(seed: int, rows: int, width: int, per_token: bool = False) -> dict[str, Tensor]:
    """Ratios on both sides of every bound, some completions without a trained token."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    new = -3 * torch.rand(rows, width, generator=generator, dtype=torch.float64) - 0.1
    return {
        "logprobs": new,
        "old_logprobs": new + 0.6 * normal(rows, width),
        "ref_logprobs": new + 0.5 * normal(rows, width),
        "sampler_logprobs": new + 0.6 * normal(rows, width),
        "entropy": normal(rows, width).abs(),
        "advantages": normal(rows, width) if per_token else normal(rows),
        "completion_mask": torch.rand(rows, width, generator=generator) < 0.7,
    }


def result(batch: dict[str, Tensor], **options: Any) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Loss, its gradients with respect to log π and entropy, metrics."""
    logprobs, entropy = batch["logprobs"].clone().requires_grad_(), batch["entropy"].clone().requires_grad_()
    loss, metrics = policy_loss(**{**batch, "logprobs": logprobs, "entropy": entropy}, **options)
    gradients = torch.autograd.grad(loss, (logprobs, entropy), allow_unused=True, materialize_grads=True)
    return loss.detach(), *gradients, metrics


CHOICES = st.fixed_dictionaries(
    {
        "beta": st.sampled_from([0.0, 0.1]),
        "kl": st.sampled_from([*KL_ESTIMATORS]),
        "kl_weighted": st.booleans(),
        "entropy_weight": st.sampled_from([0.0, 0.3]),
        "correction": st.sampled_from(["off", "truncated", "masked"]),
        "correction_level": st.sampled_from(["token", "sequence"]),
        "correction_low": st.sampled_from([0.0, 0.5]),
        "correction_high": st.sampled_from([1.5, INF]),
    }
)


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@given(seed=st.integers(0, 2**31), per_token=st.booleans(), choice=CHOICES)
@settings(deadline=None, max_examples=25)
def test_value_and_gradient_are_those_of_the_equations(seed, per_token, choice, surrogate, aggregation):
    batch = random_batch(seed, 3, 4, per_token)
    loss, gradient, of_entropy, _ = result(
        batch,
        surrogate=surrogate,
        aggregation=aggregation,
        max_tokens=MAX_TOKENS,
        **OPTIONS[surrogate],
        **choice,
    )
    batch["logprobs"].requires_grad_()
    batch["entropy"].requires_grad_()
    expected = straightforward(batch, surrogate, aggregation, choice)
    leaves = (batch["logprobs"], batch["entropy"])
    if expected.requires_grad:
        expected_gradients = torch.autograd.grad(expected, leaves, allow_unused=True, materialize_grads=True)
    else:  # nothing was trained
        expected_gradients = tuple(torch.zeros_like(x) for x in leaves)
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradient, expected_gradients[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(of_entropy, expected_gradients[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@given(
    seed=st.integers(0, 2**31),
    sizes=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    per_token=st.booleans(),
    choice=CHOICES,
)
@settings(deadline=None, max_examples=15)
def test_micro_batches_add_up_to_the_batch(seed, sizes, per_token, choice, surrogate, aggregation):
    batch = random_batch(seed, sum(sizes), 4, per_token)
    options = {"surrogate": surrogate, "aggregation": aggregation, **OPTIONS[surrogate], **choice}
    options["denominator"] = loss_denominator(batch["completion_mask"], aggregation, max_tokens=MAX_TOKENS)
    whole = result(batch, **options)
    parts, start = [], 0
    for size in sizes:
        rows = slice(start, start + size)
        parts.append(result({k: v[rows] for k, v in batch.items()}, **options))
        start += size
    torch.testing.assert_close(sum(p[0] for p in parts), whole[0], rtol=1e-12, atol=1e-13)
    for k in (1, 2):
        torch.testing.assert_close(torch.cat([p[k] for p in parts]), whole[k], rtol=1e-12, atol=1e-13)
    for name, value in whole[3].items():
        torch.testing.assert_close(sum(p[3][name] for p in parts), value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_ranks_that_average_gradients_divide_the_denominator_by_their_number(surrogate, aggregation):
    """Three ranks with two, no and four completions; DistributedDataParallel takes the mean of their gradients."""
    batch = random_batch(51, 6, 4)
    options = {"surrogate": surrogate, "aggregation": aggregation, "beta": 0.1, **OPTIONS[surrogate]}
    whole = result(batch, max_tokens=MAX_TOKENS, **options)[1]
    on_rank = [{k: v[rows] for k, v in batch.items()} for rows in (slice(0, 2), slice(2, 2), slice(2, 6))]
    counts = [
        loss_denominator(part["completion_mask"], aggregation, max_tokens=MAX_TOKENS) for part in on_rank
    ]
    denominator = torch.stack(counts).sum().double() / 3
    gradients = [result(part, denominator=denominator, **options)[1] for part in on_rank]
    torch.testing.assert_close(torch.cat(gradients) / 3, whole, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("surrogate", SURROGATES)
class TestExtremes:
    """One token at an extreme beside an ordinary one; a third is masked and holds anything."""

    PAIRS = ((0.0, -100.0), (-100.0, 0.0), (-INF, -1.0), (-1.0, -INF), (-INF, -INF))

    @pytest.mark.parametrize("advantage", [1.0, -1.0])
    @pytest.mark.parametrize(("new", "old"), PAIRS)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("kl", KL_ESTIMATORS)
    def test_value_gradient_and_metrics_stay_finite_and_say_so(
        self, surrogate, new, old, advantage, dtype, kl
    ):
        logprobs = torch.tensor([[new, -1.0, NAN]], dtype=dtype, requires_grad=True)
        other = torch.tensor([[old, -1.2, INF]], dtype=dtype)
        loss, metrics = policy_loss(
            logprobs,
            other,
            torch.tensor([advantage]),
            torch.tensor([[True, True, False]]),
            surrogate=surrogate,
            ref_logprobs=other,
            beta=0.1,
            kl=kl,
            kl_weighted=True,
            sampler_logprobs=torch.tensor([[-INF if old == 0.0 else 0.0, -1.2, NAN]], dtype=dtype),
        )
        loss.backward()
        assert loss.isfinite()
        assert logprobs.grad is not None
        assert logprobs.grad.isfinite().all()
        assert logprobs.grad[0, 2] == 0.0
        assert all(value.isfinite() for value in metrics.values())
        assert metrics["clamped_tokens"].item() == metrics["ref_clamped_tokens"].item() == 1
        assert metrics["sampler_clamped_tokens"].item() == (1 if abs(old) != 1.0 else 0)

    @pytest.mark.parametrize("bounds", ["published", "off"])
    @pytest.mark.parametrize(("new", "old"), PAIRS)
    def test_without_bounds_too(self, surrogate, new, old, bounds):
        off = {"ppo_clip": (1.0, INF), "gspo": (1.0, INF), "gspo_token": (1.0, INF), "cispo": (1.0, INF)}
        off["gmpo"] = (INF, INF)
        options = (
            dict(zip(("clip_low", "clip_high"), off[surrogate]))
            if bounds == "off" and surrogate in off
            else {}
        )
        for advantage in (1.0, -1.0):
            logprobs = torch.tensor([[new, -1.0]], requires_grad=True)
            loss, _ = policy_loss(
                logprobs,
                torch.tensor([[old, -1.2]]),
                torch.tensor([advantage]),
                torch.ones(1, 2, dtype=torch.bool),
                surrogate=surrogate,
                **options,
            )
            loss.backward()
            assert loss.isfinite()
            assert logprobs.grad is not None
            assert logprobs.grad.isfinite().all()
            if surrogate not in ("cispo", "reinforce"):  # whose gradient does not go through the ratio
                assert logprobs.grad[0, 0] == 0.0

    def test_masked_garbage_changes_no_bit(self, surrogate):
        batch = random_batch(11, 4, 5, per_token=True)
        mask = batch["completion_mask"]
        options = {"surrogate": surrogate, "beta": 0.1, "entropy_weight": 0.1, **OPTIONS[surrogate]}
        clean = result(batch, **options)
        for bad in (NAN, INF, -INF, 1e30):
            dirty = {k: v if v.dtype == torch.bool else torch.where(mask, v, bad) for k, v in batch.items()}
            got = result(dirty, **options)
            assert all(torch.equal(a, b) for a, b in zip(got[:3], clean[:3]))
            assert got[3] == clean[3]

    def test_nothing_trained_is_zero_with_a_graph(self, surrogate):
        for shape in ((2, 3), (0, 3), (2, 0)):
            for aggregation in AGGREGATIONS:
                logprobs = torch.full(shape, NAN, requires_grad=True)
                loss, metrics = policy_loss(
                    logprobs,
                    torch.full(shape, -INF),
                    torch.full((shape[0],), NAN),
                    torch.zeros(shape, dtype=torch.bool),
                    surrogate=surrogate,
                    aggregation=aggregation,
                    max_tokens=3,
                    sampler_logprobs=torch.full(shape, NAN),
                )
                loss.backward()
                assert loss.item() == 0.0
                assert torch.equal(logprobs.grad, torch.zeros(shape))  # type: ignore[arg-type]
                assert all(value == 0 for value in metrics.values())

    def test_nan_at_a_trained_position_is_seen(self, surrogate):
        loss, _ = policy_loss(
            torch.tensor([[NAN, -1.0]]),
            None,
            torch.ones(1),
            torch.ones(1, 2, dtype=torch.bool),
            surrogate=surrogate,
        )
        assert loss.isnan()

    def test_half_precision_is_computed_in_float32(self, surrogate):
        torch.manual_seed(0)
        new, old = (-3 * torch.rand(2, 4, 5)).bfloat16().unbind(0)
        advantages, mask = torch.randn(4), torch.rand(4, 5) < 0.8
        half, _ = policy_loss(new, old, advantages, mask, surrogate=surrogate)
        wide, _ = policy_loss(new.float(), old.float(), advantages, mask, surrogate=surrogate)
        assert half.dtype == torch.float32
        assert half.item() == wide.item()

    def test_no_value_is_looked_at(self, surrogate):
        with torch.device("meta"):
            logprobs, entropy = torch.empty(2, 3, requires_grad=True), torch.empty(2, 3, requires_grad=True)
            loss, metrics = policy_loss(
                logprobs,
                torch.empty(2, 3),
                torch.empty(2),
                torch.ones(2, 3, dtype=torch.bool),
                surrogate=surrogate,
                ref_logprobs=torch.empty(2, 3),
                beta=0.1,
                kl_weighted=True,
                entropy=entropy,
                entropy_weight=0.1,
            )
            loss.backward()
        assert loss.is_meta
        assert all(value.is_meta for value in metrics.values())


@pytest.mark.parametrize(("surrogate", "value", "count"), [("reinforce", 1000.0, 1), ("ppo_clip", -1.0, 0)])
def test_a_log_prob_below_any_sense_is_bounded_where_the_loss_holds_it(surrogate, value, count):
    """log π = −5000 then and now: the ratio is 1, and only the loss that holds log π bounds and counts it."""
    logprobs = torch.full((1, 1), -5000.0, requires_grad=True)
    loss, metrics = policy_loss(
        logprobs, None, torch.ones(1), torch.ones(1, 1, dtype=torch.bool), surrogate=surrogate
    )
    loss.backward()
    assert loss.item() == value
    assert metrics["clamped_tokens"].item() == count
    assert logprobs.grad is not None
    assert logprobs.grad.item() == (0.0 if count else -1.0)


@pytest.mark.parametrize("kl", KL_ESTIMATORS)
@pytest.mark.parametrize("kl_weighted", [False, True])
def test_a_clamped_ratio_does_not_weigh_the_kl_of_its_token(kl, kl_weighted):
    """log r = 30 and d = .5: weighted, it would move log π by e²⁰. The other token has r = 1: its gradient is
    KL'(d), and weighted KL(d) + KL'(d)."""
    logprobs = torch.full((1, 2), -1.0, dtype=torch.float64, requires_grad=True)
    loss, metrics = policy_loss(
        logprobs,
        torch.tensor([[-31.0, -1.0]], dtype=torch.float64),
        torch.zeros(1),
        torch.ones(1, 2, dtype=torch.bool),
        ref_logprobs=torch.full((1, 2), -1.5, dtype=torch.float64),
        beta=1.0,
        kl=kl,
        kl_weighted=kl_weighted,
        denominator=0.5,  # the mean over two tokens, over a half: their sum
    )
    loss.backward()
    assert metrics["clamped_tokens"].item() == 1
    assert metrics["ref_clamped_tokens"].item() == 0
    assert logprobs.grad is not None
    alone = {"k1": 1.0, "k2": 0.5, "k3": 1 - math.exp(-0.5)}[kl]
    weighted = {"k1": 1.0 + 0.5, "k2": 0.5 + 0.125, "k3": 0.5}[kl]
    if kl_weighted:
        assert logprobs.grad[0].tolist() == pytest.approx([0.0, weighted])
    else:
        assert logprobs.grad[0].tolist() == pytest.approx([alone, alone])


def test_reinforce_weighted_by_what_sampled_is_cispo_with_its_upper_bound():
    """Without old log-probs the weight is π / π_sampler: −min(r, c) A log π either way."""
    batch = random_batch(41, 4, 5)
    arguments = (batch["advantages"], batch["completion_mask"])
    results = []
    for old, options in (
        (None, {"surrogate": "reinforce", "sampler_logprobs": batch["old_logprobs"], "correction_high": 1.5}),
        (batch["old_logprobs"], {"surrogate": "cispo", "clip_low": 1.0, "clip_high": 0.5}),
    ):
        logprobs = batch["logprobs"].clone().requires_grad_()
        loss, _ = policy_loss(logprobs, old, *arguments, **options)
        (gradient,) = torch.autograd.grad(loss, logprobs)
        results.append((loss.detach(), gradient))
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-14)


class TestFreshSamples:
    """One update a rollout: what coincides, as the table in docs/objectives.md says."""

    @staticmethod
    def gradient(**options: Any) -> Tensor:
        batch = random_batch(21, 4, 5)
        keep = {"logprobs", "advantages", "completion_mask", *options.pop("keep", ())}
        batch = {k: v for k, v in batch.items() if k in keep}
        batch["logprobs"].requires_grad_()
        loss, _ = policy_loss(old_logprobs=None, max_tokens=MAX_TOKENS, **(batch | options))
        (gradient,) = torch.autograd.grad(loss, batch["logprobs"])
        return gradient

    @pytest.mark.parametrize("aggregation", AGGREGATIONS)
    @pytest.mark.parametrize("surrogate", SURROGATES)
    def test_every_surrogate_has_the_same_gradient(self, surrogate, aggregation):
        got = self.gradient(surrogate=surrogate, aggregation=aggregation)
        torch.testing.assert_close(
            got, self.gradient(surrogate="reinforce", aggregation=aggregation), rtol=1e-12, atol=0
        )

    def test_the_clip_plays_no_part(self):
        narrow = self.gradient(clip_low=0.0, clip_high=0.0, dual_clip=1.5)
        assert torch.equal(narrow, self.gradient(clip_low=1.0, clip_high=INF))

    def test_advantages_by_token_part_gspo_and_gmpo_from_the_others(self):
        advantages = random_batch(22, 4, 5, per_token=True)["advantages"]
        plain = self.gradient(surrogate="reinforce", advantages=advantages)
        for surrogate in SURROGATES:
            same = torch.allclose(
                self.gradient(surrogate=surrogate, advantages=advantages), plain, rtol=1e-12
            )
            assert same == (surrogate not in ("gspo", "gmpo")), surrogate

    def test_completions_of_one_length_make_the_means_alike_and_the_sum_longer(self):
        mask = torch.arange(5).expand(4, 5) < 3
        of = {name: self.gradient(aggregation=name, completion_mask=mask) for name in AGGREGATIONS}
        torch.testing.assert_close(of["token_mean"], of["sequence_mean"], rtol=1e-12, atol=0)
        torch.testing.assert_close(of["sequence_sum_mean"], 3 * of["sequence_mean"], rtol=1e-12, atol=0)
        torch.testing.assert_close(of["constant"], 3 / MAX_TOKENS * of["sequence_mean"], rtol=1e-12, atol=0)

    def test_k3_weighted_by_the_ratio_has_the_gradient_of_k2(self):
        """r (e^−d + d − 1) moves by r (e^−d + d − 1 + 1 − e^−d) = r d, and r is 1."""
        kl = {"keep": ["ref_logprobs"], "beta": 0.5}
        weighted = self.gradient(**kl, kl="k3", kl_weighted=True)
        torch.testing.assert_close(weighted, self.gradient(**kl, kl="k2"), rtol=1e-12, atol=1e-15)
        assert not torch.allclose(weighted, self.gradient(**kl, kl="k3"), rtol=1e-3)

    def test_k1_in_the_reward_of_each_token_has_the_gradient_of_k2_in_the_loss(self):
        batch = random_batch(21, 4, 5)
        penalty, _ = kl_penalty(
            batch["logprobs"], batch["ref_logprobs"], batch["completion_mask"], beta=0.5, level="token"
        )
        in_reward = self.gradient(advantages=batch["advantages"][:, None] - penalty)
        in_loss = self.gradient(keep=["ref_logprobs"], beta=0.5, kl="k2")
        torch.testing.assert_close(in_reward, in_loss, rtol=1e-12, atol=1e-15)

    def test_values_differ_where_gradients_do_not(self):
        """A = 1, log π = −1: PPO −1, SAPO −2, the two with log π +1."""
        arguments = (torch.full((1, 1), -1.0), None, torch.ones(1), torch.ones(1, 1, dtype=torch.bool))
        values = {name: policy_loss(*arguments, surrogate=name)[0].item() for name in SURROGATES}
        assert values == {
            "ppo_clip": -1.0,
            "gspo": -1.0,
            "gspo_token": -1.0,
            "cispo": 1.0,
            "sapo": -2.0,
            "gmpo": -1.0,
            "reinforce": 1.0,
        }


class TestEntropyBonus:
    def test_gradient_reaches_the_logits(self):
        """dH/dz_k = −p_k (log p_k + H), worked out by hand for two outcomes."""
        logits = torch.tensor([[[0.3, -0.2]]], dtype=torch.float64, requires_grad=True)
        distribution = torch.distributions.Categorical(logits=logits)
        loss, metrics = policy_loss(
            logits.log_softmax(-1)[..., 0],
            None,
            torch.zeros(1),
            torch.ones(1, 1, dtype=torch.bool),
            entropy=distribution.entropy(),
            entropy_weight=0.5,
        )
        (gradient,) = torch.autograd.grad(loss, logits)
        p = 1 / (1 + math.exp(-0.5))
        entropy = -p * math.log(p) - (1 - p) * math.log(1 - p)
        assert loss.item() == pytest.approx(-0.5 * entropy)
        assert metrics["entropy_sum"].item() == pytest.approx(entropy)
        slope = 0.5 * p * (math.log(p) + entropy)
        assert gradient[0, 0].tolist() == pytest.approx([slope, -slope])
        assert slope > 0  # descent takes the likelier logit down

    def test_it_is_aggregated_as_the_surrogate_is(self):
        batch = random_batch(31, 3, 4)
        for aggregation in AGGREGATIONS:
            options = {"aggregation": aggregation, "max_tokens": MAX_TOKENS, "correction": "off"}
            _, _, of_entropy, _ = result(batch, entropy_weight=2.0, **options)
            expected = AGGREGATIONS[aggregation].total(
                batch["entropy"].requires_grad_(), batch["completion_mask"]
            )
            (of_total,) = torch.autograd.grad(expected, batch["entropy"])
            count = loss_denominator(batch["completion_mask"], aggregation, max_tokens=MAX_TOKENS)
            torch.testing.assert_close(of_entropy, -2.0 * of_total / count)
            batch["entropy"].requires_grad_(False)

    def test_an_entropy_without_a_gradient_is_refused_where_it_should_move_weights(self):
        logprobs = torch.full((1, 2), -1.0, requires_grad=True)
        arguments = (None, torch.ones(1), torch.ones(1, 2, dtype=torch.bool))
        with pytest.raises(ValueError, match="with an entropy that carries no gradient"):
            policy_loss(logprobs, *arguments, entropy=torch.ones(1, 2), entropy_weight=0.1)
        loss, _ = policy_loss(logprobs.detach(), *arguments, entropy=torch.ones(1, 2), entropy_weight=0.1)
        assert loss.item() == pytest.approx(-1.1)  # an evaluation has no gradient anywhere


class TestWarnings:
    ARGUMENTS = (torch.full((1, 2), -1.0), None, torch.ones(1), torch.ones(1, 2, dtype=torch.bool))

    @pytest.mark.filterwarnings("error")
    def test_nothing_published_warns(self):
        for surrogate in SURROGATES:
            policy_loss(*self.ARGUMENTS, surrogate=surrogate)
            policy_loss(*self.ARGUMENTS, surrogate=surrogate, aggregation="sequence_sum_mean")
        for kl, weighted in (("k2", False), ("k3", False), ("k3", True), ("k1", True)):
            policy_loss(
                *self.ARGUMENTS, ref_logprobs=self.ARGUMENTS[0], beta=0.1, kl=kl, kl_weighted=weighted
            )
        policy_loss(*self.ARGUMENTS, ref_logprobs=self.ARGUMENTS[0], kl="k1")  # measured only

    @pytest.mark.parametrize("surrogate", ["gspo", "gspo_token", "gmpo"])
    @pytest.mark.parametrize("aggregation", ["token_mean", "constant"])
    def test_one_ratio_a_completion_weighed_by_its_length(self, surrogate, aggregation):
        with pytest.warns(UserWarning, match="has one ratio a completion"):
            policy_loss(*self.ARGUMENTS, surrogate=surrogate, aggregation=aggregation, max_tokens=4)

    def test_k1_in_the_loss(self):
        with pytest.warns(UserWarning, match="expected gradient of 0"):
            policy_loss(*self.ARGUMENTS, ref_logprobs=self.ARGUMENTS[0], beta=0.1, kl="k1")


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_several_updates_on_the_same_samples_learn_and_show_how_far_they_went(surrogate):
    """Four outcomes, one of them rewarded; 20 rollouts of 64 samples, three updates on each."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    drift = []
    for _ in range(20):
        probabilities = logits.detach().softmax(-1)
        sampled = torch.multinomial(probabilities, 64, replacement=True, generator=generator)[:, None]
        old = probabilities.log()[sampled]
        rewards = (sampled[:, 0] == 2).double()
        for number in range(3):
            loss, sums = policy_loss(
                logits.log_softmax(-1)[sampled],
                old,
                rewards - rewards.mean(),
                torch.ones_like(sampled, dtype=torch.bool),
                surrogate=surrogate,
            )
            (gradient,) = torch.autograd.grad(loss, logits)
            with torch.no_grad():
                logits -= 2.0 * gradient
            if number == 0:
                assert sums["kl_old_sum"].item() == pytest.approx(0.0, abs=1e-12)
        drift.append(sums["kl_old_sum"].item())
    assert logits.softmax(-1)[2].item() > 0.8
    assert max(drift) > 1e-3
