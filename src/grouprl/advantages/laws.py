"""Checks of the laws that an estimator declares, over seeded random batches: for its author's own tests.

A law is a function of one batch that gives a complaint, or None. Batches hold what breaks estimators elsewhere:
equal rewards, a group of one, one outlier, a spread of next to nothing, failed scores, interleaved groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grouprl.advantages.law_batches import Batch, random_batch
from grouprl.advantages.registry import LAWS, Estimator, get
from grouprl.errors import InputError

RELATIVE = {torch.float32: 1e-4, torch.float64: 1e-7}
CONSTANTS = (0.0, 1.0, 0.1, 0.3, 0.7, 0.9, 100.1, 1000.1)


@dataclass(frozen=True, slots=True)
class Subject:
    """An estimator with its keywords."""

    estimator: Estimator
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, batch: Batch, **keywords: Any) -> Tensor:
        extras = {
            "lengths": batch.lengths,
            "greedy_rewards": batch.greedy,
            "max_reward": batch.highest,
            "components": [batch.rewards, batch.rewards / 2],
        }
        needed = {key: value for key, value in extras.items() if key in self.estimator.needs}
        given = {**needed, **self.keywords, **keywords}
        result = self.estimator(batch.rewards, batch.group_ids, **given)
        if not isinstance(result, Tensor) or result.shape != batch.rewards.shape:
            raise AssertionError(
                f"{self.estimator.name}: expected a tensor of the shape of rewards, got {result!r}"
            )
        return result

    def size(self, batch: Batch, group: Tensor) -> int:
        """What the bound is a function of."""
        if self.estimator.scope in ("group", "token"):
            return len(group)
        return int(batch.lengths.sum()) if "lengths" in self.estimator.needs else len(batch.rewards)


def check_laws(
    estimator: str | Estimator,
    *,
    laws: Iterable[str] | None = None,
    cases: int = 25,
    seed: int = 0,
    **keywords: Any,
) -> None:
    """Check each law that an estimator declares, over random batches.

    Args:
        estimator: A registered name, or an `Estimator`.
        laws: Which to check; those that it declares if not given.
        cases: Batches for each law and dtype.
        seed: Another seed draws other batches.
        **keywords: Passed on to the estimator, such as k=4.

    Raises:
        AssertionError: With the law, and the batch for which it does not hold.
        InputError: For an unknown estimator or law.

    Example:
        >>> from grouprl import advantages
        >>> advantages.check_laws("grpo", eps=1e-4)
        >>> advantages.check_laws("dr_grpo", laws=["scale_invariant"])
        Traceback (most recent call last):
        ...
        AssertionError: dr_grpo: A(c·R, c·eps) = A(R, eps) does not hold: ...

    Source: ours.
    """
    found = estimator if isinstance(estimator, Estimator) else get(estimator)
    subject = Subject(found, keywords)
    for law in LAWS if laws is None else laws:
        if law not in LAWS:
            raise InputError(
                f"check_laws: laws holds {law!r}, expected some of {', '.join(LAWS)}; correct the name"
            )
        if laws is None and law not in found.laws:
            continue
        rng = np.random.default_rng([seed, *map(ord, law)])
        for case in range(cases):
            dtype = (torch.float32, torch.float64)[case % 2]
            check_law(subject, law, random_batch(rng, dtype), rng)


def check_law(subject: Subject, law: str, batch: Batch, rng: np.random.Generator) -> None:
    """Check one law on one batch.

    Raises:
        AssertionError: If it does not hold.
    """
    complaint = CHECKS[law](subject, batch, rng)
    if complaint is not None:
        raise AssertionError(
            f"{subject.estimator.name}: {LAWS[law]} does not hold: {complaint}, with rewards "
            f"{batch.rewards.tolist()} ({batch.rewards.dtype}) in groups {batch.group_ids.tolist()}"
        )


# ---- the laws -------------------------------------------------------------------------------------------


def _equal_is_zero(subject: Subject, batch: Batch, rng: np.random.Generator) -> str | None:
    rewards = batch.rewards.clone()
    groups = list(batch.groups())
    constant = [group for group in groups if rng.random() < 0.5] or groups[:1]
    for group in constant:
        rewards[group] = float(rng.choice(CONSTANTS))
    result = subject(replace(batch, rewards=rewards))
    for group in constant:
        if bool((result[group] != 0).any()):
            return f"{len(group)} rewards of {rewards[group[0]].item()} give {result[group].tolist()}"
    return None


def _single_is_zero(subject: Subject, batch: Batch, rng: np.random.Generator) -> str | None:
    first = torch.stack([group[0] for group in batch.groups()])
    names = batch.group_ids.clone()
    names[first] = 1000 + torch.arange(len(first))
    result = subject(replace(batch, group_ids=names))
    return f"alone, they give {result[first].tolist()}" if bool((result[first] != 0).any()) else None


def _zero_sum(subject: Subject, batch: Batch, rng: np.random.Generator) -> str | None:
    result = subject(batch).double()
    for group in batch.groups():
        mine = result[group]
        if abs(mine.sum().item()) > _tolerance(batch) * max(mine.abs().sum().item(), 1.0):
            return f"{mine.tolist()} sum to {mine.sum().item()}"
    return None


def _shift_invariant(subject: Subject, batch: Batch, rng: np.random.Generator) -> str | None:
    # Multiples of 2^-10, so that the sums are exact.
    here = replace(batch, rewards=(batch.rewards * 1024).round() / 1024)
    shift = float(rng.integers(1, 64))
    there = replace(
        here, rewards=here.rewards + shift, greedy=here.greedy + shift, highest=here.highest + shift
    )
    return _differ(subject(here), subject(there), batch, f"shifted by {shift:g}")


def _scale_invariant(subject: Subject, batch: Batch, rng: np.random.Generator) -> str | None:
    c = 2.0 ** int(rng.integers(-8, 9))
    there = Batch(batch.rewards * c, batch.group_ids, batch.lengths, batch.greedy * c, batch.highest * c)
    if not subject.estimator.accepts("eps"):
        return _differ(subject(batch), subject(there), batch, f"times {c:g}")
    eps = subject.keywords.get("eps", 1e-6)
    return _differ(subject(batch, eps=eps), subject(there, eps=c * eps), batch, f"times {c:g}, eps too")


def _permutation_equivariant(subject: Subject, batch: Batch, rng: np.random.Generator) -> str | None:
    order = torch.from_numpy(rng.permutation(len(batch.rewards)))
    return _differ(subject(batch)[order], subject(batch.take(order)), batch, f"in the order {order.tolist()}")


def _batch_independent(subject: Subject, batch: Batch, rng: np.random.Generator) -> str | None:
    result = subject(batch)
    for group in batch.groups():
        complaint = _differ(result[group], subject(batch.take(group)), batch, f"alone, {group.tolist()}")
        if complaint:
            return complaint
    return None


def _bounded(subject: Subject, batch: Batch, rng: np.random.Generator) -> str | None:
    bound = subject.estimator.bound
    if bound is None:
        return "no bound is declared"
    result = subject(batch)
    for group in batch.groups():
        limit = bound(subject.size(batch, group))
        largest = result[group].abs().max().item()
        if not largest <= limit * (1.0 + _tolerance(batch)) + 1e-12:
            return f"{largest} is more than {limit}"
    return None


def _finite(subject: Subject, batch: Batch, rng: np.random.Generator) -> str | None:
    huge = torch.tensor(
        rng.choice([1e38, -1e38, 1e-38, 3e38, 1.0], len(batch.rewards)), dtype=batch.rewards.dtype
    )
    bad = torch.tensor(
        rng.choice([math.nan, math.inf, -math.inf], len(batch.rewards)), dtype=batch.rewards.dtype
    )
    fate = torch.from_numpy(rng.integers(0, 3, len(batch.rewards)))
    rewards = torch.where(fate == 0, batch.rewards, torch.where(fate == 1, huge, bad))
    spoiled = replace(batch, rewards=rewards)
    try:
        result = subject(spoiled)
    except InputError:  # for rewards ≥ 0 alone
        result = subject(replace(spoiled, rewards=rewards.abs()))
    return None if bool(result.isfinite().all()) else f"{rewards.tolist()} give {result.tolist()}"


def _unscored_absent(subject: Subject, batch: Batch, rng: np.random.Generator) -> str | None:
    lost = torch.from_numpy(rng.random(len(batch.rewards)) < 0.3)
    kept = (~lost).nonzero().squeeze(1)
    marks = torch.tensor(rng.choice([math.nan, math.inf, -math.inf], len(lost)), dtype=batch.rewards.dtype)
    spoiled = replace(batch, rewards=torch.where(lost, marks, batch.rewards))
    ways = [("NaN or infinite", subject(spoiled))]
    if subject.estimator.accepts("valid"):
        ways.append(("valid=False", subject(batch, valid=~lost)))
    for way, result in ways:
        if bool((result[lost] != 0).any()):
            return f"{way} at {lost.nonzero().squeeze(1).tolist()} gives {result[lost].tolist()}"
        without = subject(batch.take(kept)) if len(kept) else result[kept]
        complaint = _differ(
            without, result[kept], batch, f"with {way} at {lost.nonzero().squeeze(1).tolist()}"
        )
        if complaint:
            return complaint
    return None


CHECKS: Mapping[str, Callable[[Subject, Batch, np.random.Generator], str | None]] = {
    "equal_is_zero": _equal_is_zero,
    "single_is_zero": _single_is_zero,
    "zero_sum": _zero_sum,
    "shift_invariant": _shift_invariant,
    "scale_invariant": _scale_invariant,
    "permutation_equivariant": _permutation_equivariant,
    "batch_independent": _batch_independent,
    "bounded": _bounded,
    "finite": _finite,
    "unscored_absent": _unscored_absent,
}


def _tolerance(batch: Batch) -> float:
    return RELATIVE[batch.rewards.dtype]


def _differ(here: Tensor, there: Tensor, batch: Batch, what: str) -> str | None:
    if not len(here):
        return None
    allowed = _tolerance(batch) * max(1.0, here.abs().max().item())
    if bool(((here - there).abs() <= allowed).all()):
        return None
    return f"{here.tolist()} becomes {there.tolist()} {what}"
