"""Copies within groups, and entropy."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from grouprl.report.findings.data import RunData, total
from grouprl.report.findings.finding import Evidence, Finding, Severity
from grouprl.report.findings.registry import register
from grouprl.report.findings.statistics import difference, ratio, share

MOST_COPIES = 0.02
"""Pairs of equal text beyond those that the log-probs let expect."""
MOST_IDENTICAL = 0.25
LOW_ENTROPY = 0.05
"""Nats a token: one token in a hundred is not the likeliest."""
SOLVED = 0.9
RISE = 1.0


@register("copies", finds=("copies_unexplained", "groups_identical"))
def copies(run: RunData) -> Iterator[Finding]:
    """More equal completions than independent sampling gives, or a quarter of the groups one text G times over."""
    yield from _unexplained(run)
    groups = run.last.filter((pl.col("texts") == pl.col("n")) & (pl.col("n") > 2))
    if groups.is_empty():
        return
    same = (groups["distinct"] == 1).cast(pl.Int64)
    found = share(same, same * 0 + 1)
    if found is None or found.low <= MOST_IDENTICAL:
        return
    pairs = share(groups["same_pairs"], groups["pairs"])
    identical = groups.filter(pl.col("distinct") == 1)
    evidence = [Evidence.of("groups that are one text", found)]
    if pairs is not None:
        evidence.append(Evidence.of("pairs of equal text in groups", pairs))
    evidence.append(Evidence("distinct texts a group, of late", float(groups["distinct"].mean()), "number"))  # type: ignore[arg-type]
    yield Finding(
        "groups_identical",
        Severity.WARNING,
        f"{100 * found.value:.0f} % of the groups are one text, over and over",
        "Equal completions have equal rewards, so nothing is compared: the policy no longer explores.",
        (
            "Sample at temperature 1, without top-p and top-k; give the samples of a prompt different seeds.",
            "Keep entropy up: clip_high above clip_low (DAPO: 0.28), a lower learning rate, or stop earlier.",
        ),
        run.stretches(identical),
        tuple(evidence),
        run.examples(identical),
    )


def _unexplained(run: RunData) -> Iterator[Finding]:
    """Ordered pairs of equal text against Σ_i (n − 1) exp(log-prob of i)."""
    if _cut_distribution(run):
        return
    groups = run.groups.filter(pl.col("expected_pairs").is_not_null() & (pl.col("n") > 1))
    excess = ratio(groups["same_pairs"] - groups["expected_pairs"], groups["pairs"])
    if excess is None or excess.low <= MOST_COPIES:
        return
    pairs = total(groups, "pairs")
    copied = groups.filter(pl.col("same_pairs") > pl.col("expected_pairs") + 0.5)
    yield Finding(
        "copies_unexplained",
        Severity.ERROR,
        "Groups hold more copies than independent samples would",
        "The log-probs say how likely a second sample is to be the same text. There are far more copies: the samples "
        "of a prompt share randomness, or come from a cache.",
        (
            "Give each sample its own seed; see that the engine's seed is not fixed per request.",
            "See that the temperature at which log-probs are recorded is the one that is sampled at.",
        ),
        run.stretches(copied),
        (
            Evidence("pairs of equal text", total(groups, "same_pairs") / pairs),
            Evidence("expected from the log-probs", total(groups, "expected_pairs") / pairs),
            Evidence.of("difference", excess),
        ),
        run.examples(copied),
    )


def _cut_distribution(run: RunData) -> bool:
    """Whether top-p or top-k made texts likelier than their log-probs, which are over the full vocabulary."""
    rollout = run.config.get("rollout", {})
    return rollout.get("top_p", 1.0) < 1 or rollout.get("top_k", 0) > 0


@register("entropy", finds=("entropy_collapsed", "entropy_rises"))
def entropy(run: RunData) -> Iterator[Finding]:
    """Almost no entropy left while much is still wrong; or it rises while the reward falls.

    Entropy is estimated by −log-prob of the sampled tokens, whose mean it is.
    """
    now = ratio(run.last["nll"], run.last["nll_tokens"])
    right = share(run.last["right"], run.last["scored"])
    if now is None or right is None:
        return
    evidence = [Evidence.of("entropy a token, of late", now, "nats"), Evidence.of("right, of late", right)]
    before = ratio(run.first["nll"], run.first["nll_tokens"]) if run.has_trend else None
    if before is not None:
        evidence.insert(0, Evidence.of("entropy a token, at the start", before, "nats"))
    if now.high < LOW_ENTROPY and right.high < SOLVED:
        yield Finding(
            "entropy_collapsed",
            Severity.WARNING,
            f"Entropy fell to {now.value:.3f} nats a token before the task was solved",
            "The policy gives one answer whatever it samples, right or wrong: groups have no spread, and what is not "
            "tried cannot be learned.",
            (
                "Go back to a checkpoint with entropy and train on with clip_high above clip_low (DAPO: 0.28).",
                "Lower the learning rate; add an entropy bonus or a KL penalty.",
            ),
            run.stretches(run.last),
            tuple(evidence),
            run.examples(run.last.filter(pl.col("kind") == "all_low")),
        )
        return
    if before is None:
        return
    rise = difference(now, before)
    was = share(run.first["right"], run.first["scored"])
    if rise.low > RISE and was is not None and difference(right, was).high < 0:
        yield Finding(
            "entropy_rises",
            Severity.WARNING,
            f"Entropy rose by {rise.value:.1f} nats a token while fewer completions are right",
            "The policy is coming apart: updates push down more than they build up.",
            (
                "Lower the learning rate; clip gradients; look at sampler–trainer mismatch.",
                "Go back to the checkpoint before it rose.",
            ),
            run.stretches(run.last),
            (*evidence, Evidence.of("rise", rise, "nats"), Evidence.of("right, at the start", was)),
            run.examples(run.last),
        )
