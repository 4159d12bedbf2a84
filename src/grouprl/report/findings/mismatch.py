"""Log-probs of the sampler that are not the trainer's."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from grouprl.report.findings.data import RunData, total
from grouprl.report.findings.finding import Evidence, Finding, Severity
from grouprl.report.findings.registry import register
from grouprl.report.findings.statistics import ratio

MOST_KL = 0.01
SEVERE_KL = 0.1
MOST_GAP = 0.05

EXPLAINED = (
    "The ratio starts away from 1, so the gradient is that of other samples than those drawn. Rounding "
    "alone (bfloat16 against float32) stays below a thousandth of a nat a token.",
    (
        "Look for weights that were not sent before sampling, or were sent without an adapter.",
        "Look for another temperature, top-p or chat template on one side, and for a cache of an older policy.",
        "What is left, correct in the loss: truncated importance weights (docs/objectives.md).",
    ),
)
SEVERE = ("The sampler draws from another policy than the trainer trains", *EXPLAINED)
SLIGHT = ("Sampler and trainer disagree about what was sampled", *EXPLAINED)
STALE = (
    "The policy moves far between drawing and training",
    "Completions are drawn by weights one step old, and until they are trained on they become that much less likely: "
    "their weights in the loss spread, and some are held.",
    (
        "Lower the learning rate, or clip the gradient lower.",
        "Let sampling and training take turns: max_staleness = 0.",
    ),
)
"""Title, meaning and what to do."""


@register("sampler_mismatch", finds=("sampler_mismatch",))
def sampler_mismatch(run: RunData) -> Iterator[Finding]:
    """The sampler's log-probs stand more than 0.01 nats a token above the trainer's, or 0.05 either way; 0.1 where the
    run draws by earlier weights, as it says in its metrics."""
    groups = run.groups.filter(pl.col("gap_tokens") > 0)
    kl, gap = ratio(groups["gap"], groups["gap_tokens"]), ratio(groups["gap_abs"], groups["gap_tokens"])
    if kl is None or gap is None or (kl.low <= MOST_KL and gap.low <= MOST_GAP):
        return
    length = total(groups, "gap_tokens") / total(groups, "n")
    severe, stale = kl.low > SEVERE_KL, any(line.get("staleness") for line in run.metrics)
    if stale and not severe:
        return
    title, meaning, to_do = STALE if stale else SEVERE if severe else SLIGHT
    yield Finding(
        "sampler_mismatch",
        Severity.ERROR if severe and not stale else Severity.WARNING,
        title,
        meaning,
        to_do,
        run.stretches(groups.filter(pl.col("gap_abs") > MOST_KL * pl.col("gap_tokens"))),
        (
            Evidence.of("KL sampler to trainer, a token", kl, "nats"),
            Evidence.of("size of the difference, a token", gap, "nats"),
            Evidence("over a completion of mean length", kl.value * length, "nats"),
        ),
        run.examples(groups.sort(pl.col("gap_abs") / pl.col("gap_tokens")).tail(1)),
    )
