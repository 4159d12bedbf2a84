"""The figures of the docs, drawn from the estimators' own code: `make figures` writes docs/images/*.svg."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import results_figures
import scaling_figures
import torch
from svg import Line, Panel, render, scale_from_zero
from torch import Tensor
from weights import (
    PASS_RATES,
    Curve,
    binomial,
    by_right_and_wrong,
    curve,
    mean_advantage,
    outcomes,
    weight_and_mean,
)

from grouprl import advantages
from grouprl.objectives import policy_loss

IMAGES = Path(__file__).parent / "images"
MEASURED = Path(__file__).parent / "measured"
BLUE, ORANGE, GREEN, PINK, GREY = (
    "#0072b2",
    "#c84e00",
    "#00805a",
    "#a8568b",
    "#666666",
)  # told apart by all eyes
LARGE = 512
RATE = "pass rate p of the prompt"
SOLID_AND_DASHED = "Solid: groups of 8. Dashed, in the same colour: large groups (512)."


def both(colour: str, estimator: str, G: int = 8, **options: Any) -> list[Line]:
    """The line of groups of G, labelled, and dashed that of large groups."""
    keywords = options.pop("keywords", {})
    return [
        Line(curve(estimator, LARGE, **keywords), colour, dashed=True),
        Line(curve(estimator, G, **keywords), colour, **options),
    ]


def one_group() -> str:
    rewards = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    mean, values = sum(rewards) / len(rewards), advantages.grpo(rewards).tolist()
    colours = [BLUE if a > 0 else ORANGE for a in values]

    def stems(start: float, heights: Sequence[float], labels: Mapping[int, str]) -> list[Line]:
        lines = []
        for k, (height, colour) in enumerate(zip(heights, colours), start=1):
            lines.append(Line([(k, start), (k, height)], colour))
            label = labels.get(k, "")
            lines.append(
                Line([(k, height)] * 2, colour, label, at=k, shift=(12, 5), anchor="start", dots=True)
            )
        return lines

    def panel(title: str, label: str, lines: list[Line], y: tuple[float, float, float]) -> Panel:
        return Panel(title, "completion", label, lines, x=(0.0, 9.0, 1.0), x_ticks=range(1, 9), y=y)

    baseline = Line([(0, mean), (9, mean)], GREY, "their mean: the baseline", at=6.5, dashed=True)
    more, less = f"{values[0]:.3f}: more likely", f"−{-values[7]:.3f}: less likely"
    return render(
        [
            panel(
                "Eight completions of one prompt",
                "reward",
                [baseline, *stems(mean, rewards, {})],
                (0.0, 1.0, 0.25),
            ),
            panel(
                "What GRPO makes of them",
                "advantage",
                [
                    *stems(0.0, values, {4: more}),
                    Line([(5, values[7])] * 2, ORANGE, less, at=5, shift=(-6, 24), anchor="start"),
                ],
                (-1.0, 2.0, 0.5),
            ),
        ],
        title="Rewards of one group with their mean, and the advantages that GRPO makes of them",
    )


def dead_groups() -> str:
    """Share of groups without spread: those that the estimator gives nothing but zeros."""

    def dead(G: int) -> Curve:
        silent = (advantages.grpo(outcomes(G)) == 0).all(-1).to(torch.float64)
        return [(p, float(torch.tensor(binomial(G, p), dtype=torch.float64) @ silent)) for p in PASS_RATES]

    lines = [
        Line(dead(G), colour, f"G = {G}", at=0.5, shift=(0.0, dy))
        for G, colour, dy in ((2, ORANGE, -8.0), (4, PINK, -8.0), (8, BLUE, -8.0))
    ] + [Line(dead(32), GREEN, "G = 32", at=0.08, shift=(10.0, 0.0), anchor="start")]
    return render(
        [Panel("Groups whose rewards are all equal", RATE, "share of groups", lines)],
        title="Share of groups without spread against the pass rate, for groups of 2, 4, 8 and 32",
    )


def standardised() -> str:
    return render(
        [
            Panel(
                "Over the group's own spread",
                RATE,
                "weight w(p)",
                [
                    *both(BLUE, "grpo", label="grpo", at=0.5, shift=(0, 20)),
                    *both(ORANGE, "mean_abs", label="mean_abs", at=0.5, shift=(0, -10)),
                ],
                y=(0.0, 0.6, 0.1),
            ),
            Panel(
                "Over the batch's spread",
                RATE,
                "weight w(p)",
                [
                    Line(curve("grpo"), GREY, "grpo", at=0.22, shift=(-14, -8), anchor="end"),
                    *both(GREEN, "batch_std", label="batch_std", at=0.5, shift=(0, 22)),
                ],
                y=(0.0, 0.6, 0.1),
            ),
        ],
        title="Weight against pass rate: grpo and mean_abs; batch_std with grpo beside it",
        footnote=SOLID_AND_DASHED + " The batch: all pass rates equally frequent.",
    )


def centred() -> str:
    G, rows = 8, outcomes(8)

    def opo(right: float, wrong: float) -> Curve:
        return curve("opo", lengths=torch.where(rows == 1, right, wrong))

    return render(
        [
            Panel(
                "Only centred",
                RATE,
                "weight w(p)",
                [
                    Line(curve("gpg", G), GREEN, "gpg, with 2 of 9 groups dead", at=0.5),
                    Line(curve("rloo", G), BLUE, "rloo", at=0.5, shift=(0, -6)),
                    Line(curve("dr_grpo", G), ORANGE, "dr_grpo", at=0.5, shift=(0, 18)),
                ],
                y=(0.0, 0.3, 0.05),
            ),
            Panel(
                "opo, right or wrong answers 3 times as long",
                RATE,
                "weight w(p)",
                [
                    Line(opo(3, 1), PINK, "right ones long", at=0.72, shift=(8, -8), anchor="start"),
                    Line(opo(1, 1), ORANGE, "alike: dr_grpo", at=0.5, shift=(0, 22)),
                    Line(opo(1, 3), BLUE, "wrong ones long", at=0.28, shift=(-8, -8), anchor="end"),
                ],
                y=(0.0, 0.3, 0.05),
            ),
        ],
        title="Weight against pass rate: rloo, dr_grpo, gpg, and opo for three relations of length and reward",
    )


def hard_prompts() -> str:
    grpo = Line(curve("grpo"), GREY, "grpo", at=0.86, shift=(-2, 9), anchor="end")
    return render(
        [
            Panel(
                "Weights that lean to hard prompts",
                RATE,
                "weight w(p)",
                [
                    *both(BLUE, "maxrl", label="maxrl", at=0.25, shift=(0, 20)),
                    grpo,
                    *both(GREEN, "ngrpo", keywords={"max_reward": 1.0}, label="ngrpo", at=0.4, shift=(0, 18)),
                    *both(
                        ORANGE,
                        "pass_at_k",
                        keywords={"k": 4},
                        label="pass_at_k, k = 4",
                        at=0.25,
                        shift=(20, -28),
                    ),
                ],
            ),
            Panel(
                "Mean advantage of the group",
                RATE,
                "E[A]",
                [
                    Line(mean_advantage("grpo"), GREY, "grpo, maxrl, pass_at_k: 0", at=0.55, shift=(0, -8)),
                    Line(
                        mean_advantage("ngrpo", max_reward=1.0),
                        GREEN,
                        "ngrpo",
                        at=0.2,
                        shift=(10, 12),
                        anchor="start",
                    ),
                ],
                y=(-0.5, 0.25, 0.25),
            ),
        ],
        title="Weight and mean advantage against pass rate: maxrl, ngrpo, pass_at_k, and grpo beside them",
        footnote=SOLID_AND_DASHED,
    )


def robust() -> str:
    def mean_of(estimator: str, right: bool) -> Curve:
        """E[A | right] or E[A | wrong], times the share of such answers: the push on them."""
        rows = outcomes(8)
        advantage = advantages.get(estimator)(rows) * (rows == float(right))
        return [(p, weight_and_mean(advantage, p, 8)[1]) for p in PASS_RATES]

    return render(
        [
            Panel(
                "Weight",
                RATE,
                "weight w(p)",
                [
                    Line(curve("grpo"), GREY, "grpo", at=0.5),
                    Line(curve("quantile"), BLUE, "quantile", at=0.55, shift=(0, 20)),
                    Line(curve("median"), ORANGE, "median", at=0.5, shift=(0, 20)),
                ],
                y=(0.0, 0.6, 0.1),
            ),
            Panel(
                "Who is pushed: right answers up, wrong ones down",
                RATE,
                "E[A], right and wrong apart",
                [
                    Line(mean_of("grpo", True), GREY, "grpo", at=0.72, shift=(10, -6), anchor="start"),
                    Line(mean_of("grpo", False), GREY),
                    Line(mean_of("quantile", True), BLUE, "quantile", at=0.28, shift=(0, -10)),
                    Line(mean_of("quantile", False), BLUE),
                    Line(mean_of("median", True), ORANGE, "median", at=0.6, shift=(0, 20)),
                    Line(mean_of("median", False), ORANGE),
                ],
                y=(-0.75, 0.75, 0.25),
            ),
        ],
        title="Weight against pass rate for quantile, median and grpo, and the push on right and on wrong answers",
    )


def beyond() -> str:
    def remax(rewards: Tensor, rates: Tensor) -> Tensor:
        return advantages.remax(rewards, greedy_rewards=(rates > 0.5).to(torch.float64))

    whitened = by_right_and_wrong(lambda rewards, rates: advantages.reinforce_plus_plus(rewards))
    greedy = by_right_and_wrong(remax)
    jspo = advantages.jspo(outcomes(8).repeat(64, 1))[:9]  # so many that the prompt left out is not missed
    based = advantages.reinforce_plus_plus_baseline(outcomes(8))

    def of(advantage: Tensor, part: int) -> Curve:
        return [(p, weight_and_mean(advantage, p, 8)[part]) for p in PASS_RATES]

    return render(
        [
            Panel(
                "Weight",
                RATE,
                "weight w(p)",
                [
                    Line(of(based, 0), GREEN, "reinforce_plus_plus_baseline", at=0.5),
                    Line(
                        [(p, w) for p, w, _ in whitened], BLUE, "reinforce_plus_plus", at=0.5, shift=(0, 24)
                    ),
                    Line([(p, w) for p, w, _ in greedy], ORANGE, "remax, jspo", at=0.5, shift=(0, 24)),
                ],
                y=(0.0, 0.7, 0.1),
            ),
            Panel(
                "Mean advantage of the prompt's completions",
                RATE,
                "E[A]",
                [
                    Line(of(based, 1), GREEN, "…_baseline", at=0.02, shift=(0, 28), anchor="start"),
                    Line(
                        [(p, a) for p, _, a in whitened],
                        BLUE,
                        "reinforce_plus_plus",
                        at=0.8,
                        shift=(-12, -6),
                        anchor="end",
                    ),
                    Line(
                        [(p, a) for p, _, a in greedy if p <= 0.5],
                        ORANGE,
                        "remax",
                        at=0.4,
                        shift=(-12, -2),
                        anchor="end",
                    ),
                    Line([(p, a) for p, _, a in greedy if p > 0.5], ORANGE),
                    Line(of(jspo, 1), PINK, "jspo", at=0.98, shift=(0, -8), anchor="end"),
                ],
                y=(-1.0, 1.0, 0.5),
            ),
        ],
        title="Weight and mean advantage against pass rate: reinforce_plus_plus, its baseline variant, remax, jspo",
        footnote="A batch in which all pass rates are equally frequent; groups of 8 where there are groups.",
    )


def several_rewards() -> str:
    """A right answer is worth 1; a style score is 0 or `worth`, by a fair coin of its own."""
    G = 8
    rows = [
        (c, [1.0] * c + [0.0] * (G - c), [float(bits >> i & 1) for i in range(G)])
        for c in range(G + 1)
        for bits in range(2**G)
    ]
    right = torch.tensor([r for _, r, _ in rows], dtype=torch.float64)
    style = torch.tensor([s for _, _, s in rows], dtype=torch.float64)

    def weights(advantage: Tensor) -> Curve:
        """w(p) of being right: the 2^G styles are equally frequent."""
        points = []
        for p in PASS_RATES:
            push = (advantage * (right - p)).mean(-1).view(G + 1, -1).mean(-1)
            points.append((p, float(torch.tensor(binomial(G, p), dtype=torch.float64) @ push)))
        return points

    def summed(worth: float) -> Tensor:
        return advantages.grpo(right + worth * style)

    apart = advantages.gdpo(right + 5 * style, components={"right": right, "style": 5 * style})
    return render(
        [
            Panel(
                "What a right answer counts beside a style score",
                RATE,
                "weight w(p) of right",
                [
                    Line(weights(summed(0.0)), GREY, "grpo, no style score", at=0.5),
                    Line(weights(apart), BLUE, "gdpo, style score of any size", at=0.5),
                    Line(
                        weights(summed(1.0)), ORANGE, "grpo on the sum, style 0 or 1", at=0.5, shift=(0, 32)
                    ),
                    Line(weights(summed(5.0)), PINK, "grpo on the sum, style 0 or 5", at=0.5),
                ],
                y=(0.0, 0.6, 0.1),
            )
        ],
        title="Weight of being right against pass rate, when a second reward is added before or after standardising",
        footnote="Groups of 8; the style score is a fair coin of its own.",
    )


def over_time() -> str:
    def spo(known: bool) -> list[tuple[float, float, float]]:
        def estimate(rewards: Tensor, rates: Tensor) -> Tensor:
            tracker, prompts = advantages.spo(), torch.round(100 * rates).long()
            if known:
                counts = [[k, 8 * p, 8 * (1 - p)] for k, p in enumerate(PASS_RATES)]
                tracker.load_state_dict({"trackers": counts})
            result: Tensor = tracker(rewards, prompts)
            return result

        return by_right_and_wrong(estimate)

    known, new = spo(True), spo(False)
    critic = by_right_and_wrong(
        lambda rewards, rates: advantages.gae(rewards.unsqueeze(-1), rates.unsqueeze(-1)).squeeze(-1)
    )
    return render(
        [
            Panel(
                "Weight",
                RATE,
                "weight w(p)",
                [
                    Line([(p, w) for p, w, _ in known], BLUE, "spo, prompts known", at=0.5),
                    Line([(p, w) for p, w, _ in new], ORANGE, "spo, prompts new", at=0.5, shift=(0, 24)),
                    Line(
                        [(p, w) for p, w, _ in critic],
                        GREEN,
                        "gae, a critic that knows p",
                        at=0.5,
                        shift=(0, 24),
                    ),
                ],
                y=(0.0, 0.7, 0.1),
            ),
            Panel(
                "Mean advantage of the prompt's completions",
                RATE,
                "E[A]",
                [
                    Line(
                        [(p, a) for p, _, a in known],
                        BLUE,
                        "spo, prompts known; gae",
                        at=0.02,
                        shift=(0, -8),
                        anchor="start",
                    ),
                    Line(
                        [(p, a) for p, _, a in new],
                        ORANGE,
                        "spo, prompts new",
                        at=0.8,
                        shift=(-12, -6),
                        anchor="end",
                    ),
                ],
                y=(-1.0, 1.0, 0.5),
            ),
        ],
        title="Weight and mean advantage against pass rate: spo with prompts that it knows and with new ones, gae",
        footnote="A batch in which all pass rates are equally frequent.",
    )


RATIOS = [(k + 0.5) / 100 for k in range(401)]  # none on a bound, where a rounding would decide


def against_ratio(surrogate: str, advantage: float, gradient: bool, **options: Any) -> Curve:
    """Loss, or its gradient with respect to log π, of a completion of one token, for each ratio."""
    logprobs = torch.tensor(RATIOS, dtype=torch.float64).log()[:, None].requires_grad_()
    total, _ = policy_loss(
        logprobs,
        torch.zeros_like(logprobs),
        torch.full((len(RATIOS),), advantage),
        torch.ones_like(logprobs, dtype=torch.bool),
        surrogate=surrogate,
        denominator=1.0,
        **options,
    )
    if gradient:
        values = torch.autograd.grad(total, logprobs)[0][:, 0]
    else:
        values = torch.stack(
            [
                policy_loss(
                    row[None],
                    torch.zeros(1, 1),
                    torch.tensor([advantage]),
                    torch.ones(1, 1, dtype=torch.bool),
                    surrogate=surrogate,
                    **options,
                )[0]
                for row in logprobs.detach()
            ]
        )
    return list(zip(RATIOS, values.tolist()))


def surrogates() -> str:
    """The two with log π in their loss have no value at a ratio, only a gradient."""

    def lines(advantage: float, gradient: bool, labels: Mapping[str, dict[str, Any]]) -> list[Line]:
        kinds: list[tuple[str, str, dict[str, Any]]] = [
            ("reinforce", GREY, {}),
            ("cispo", PINK, {"clip_low": 0.2, "clip_high": 0.2}),
            ("gmpo", GREEN, {}),
            ("sapo", ORANGE, {}),
            ("ppo_clip", BLUE, {}),
        ]
        drawn = [
            Line(
                against_ratio(name, advantage, gradient, **options),
                colour,
                **({"label": name} | labels[name] if name in labels else {}),
            )
            for name, colour, options in kinds
            if gradient or name not in ("reinforce", "cispo")
        ]
        if advantage < 0:
            dual = against_ratio("ppo_clip", advantage, gradient, dual_clip=3.0)
            drawn.append(Line([p for p in dual if p[0] > 2.9], BLUE, dashed=True))
        return drawn

    x = (0.0, 4.0, 1.0)
    return render(
        [
            Panel(
                "Loss, A = 1",
                "ratio r",
                "loss",
                lines(
                    1.0,
                    False,
                    {
                        "ppo_clip": {"at": 3.2, "shift": (0, -8)},
                        "gmpo": {"at": 2.3, "shift": (0, 18)},
                        "sapo": {"at": 3.2, "shift": (0, -8)},
                    },
                ),
                x=x,
                y=(-4.0, 0.0, 1.0),
            ),
            Panel(
                "Loss, A = −1",
                "ratio r",
                "loss",
                lines(
                    -1.0,
                    False,
                    {
                        "ppo_clip": {
                            "label": "ppo_clip, gmpo",
                            "at": 2.2,
                            "shift": (12, 14),
                            "anchor": "start",
                        },
                        "sapo": {"at": 1.2, "shift": (-10, -8), "anchor": "end"},
                    },
                ),
                x=x,
                y=(0.0, 4.0, 1.0),
            ),
            Panel(
                "Gradient with respect to log π, A = 1",
                "ratio r",
                "gradient",
                lines(
                    1.0,
                    True,
                    {
                        "ppo_clip": {"at": 2.0, "shift": (0, -8)},
                        "gmpo": {"at": 1.49, "shift": (8, 16), "anchor": "start"},
                        "sapo": {"at": 2.6, "shift": (6, 14), "anchor": "start"},
                        "cispo": {"label": "cispo, 0.8 to 1.2", "at": 3.58, "shift": (0, 18)},
                        "reinforce": {"at": 3.3, "shift": (0, -8)},
                    },
                ),
                x=x,
                y=(-2.0, 0.5, 0.5),
            ),
            Panel(
                "Gradient with respect to log π, A = −1",
                "ratio r",
                "gradient",
                lines(
                    -1.0,
                    True,
                    {
                        "ppo_clip": {
                            "label": "ppo_clip, gmpo",
                            "at": 2.4,
                            "shift": (-10, -6),
                            "anchor": "end",
                        },
                        "sapo": {"at": 2.1, "shift": (0, -8)},
                        "cispo": {"label": "cispo, 0.8 to 1.2", "at": 3.56, "shift": (0, -8)},
                        "reinforce": {"at": 2.1, "shift": (0, 18)},
                    },
                ),
                x=x,
                y=(0.0, 4.0, 1.0),
            ),
        ],
        title="Loss and gradient of a token against its ratio, for an advantage of 1 and of −1, by surrogate",
        footnote="Published bounds, but for cispo. Dashed: ppo_clip with dual_clip = 3. "
        "cispo and reinforce hold log π, so their loss is no function of the ratio.",
        columns=2,
    )


GROWTH_AXES = {
    "group": "completions of a prompt, G",
    "prompt": "tokens in a prompt",
    "completion": "tokens in a completion",
    "vocabulary": "vocabulary, thousands",
}


def growth() -> str:
    """Measured by benchmarks/growth.py, not drawn from the code: docs/measured/growth.json."""
    measured = json.loads((MEASURED / "growth.json").read_text(encoding="utf-8"))["axes"]
    panels = []
    for axis, label in GROWTH_AXES.items():
        points = {float(value): point for value, point in measured[axis].items()}
        scale = 1000.0 if axis == "vocabulary" else 1.0
        for what, unit, key, below in (
            ("Time of a step", "seconds", "seconds", -12.0),
            ("Peak memory", "GiB", "peak_gib", 20.0),
        ):
            lines = []
            for side, name, colour, dy in (("trl", "TRL", ORANGE, -10.0), ("ours", "grouprl", BLUE, below)):
                curve = [(value / scale, point[side][key]) for value, point in sorted(points.items())]
                middle = (curve[0][0] + curve[-1][0]) / 2
                lines.append(Line(curve, colour, name, at=middle, shift=(0.0, dy), dots=True))
            highest = max(y for line in lines for _, y in line.points)
            widest = max(x for line in lines for x, _ in line.points)
            panels.append(
                Panel(
                    f"{what} against the {axis}",
                    label,
                    unit,
                    lines,
                    x=(0.0, *scale_from_zero(widest)),
                    y=(0.0, *scale_from_zero(highest)),
                )
            )
    return render(
        panels,
        title="Seconds and memory of a step against group, prompt, completion and vocabulary, grouprl and TRL",
        footnote="Two prompts of 46 tokens, 8 completions of 16 tokens each, but for what is varied.",
        columns=2,
    )


DRAWN: Mapping[str, Callable[[], str]] = {
    "one-group": one_group,
    "dead-groups": dead_groups,
    "weights-standardised": standardised,
    "weights-centred": centred,
    "weights-hard-prompts": hard_prompts,
    "weights-robust": robust,
    "weights-beyond-the-group": beyond,
    "weights-several-rewards": several_rewards,
    "weights-over-time": over_time,
    "surrogates": surrogates,
    "growth": growth,
}
"""By the file's name."""

FIGURES: Mapping[str, Callable[[], str]] = {**DRAWN, **scaling_figures.FIGURES, **results_figures.measured()}
"""With those of measured runs, as far as these have been made."""


def main() -> None:
    for name, draw in FIGURES.items():
        path = IMAGES / f"{name}.svg"
        path.write_text(draw(), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
