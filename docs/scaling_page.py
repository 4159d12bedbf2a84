"""The tables of docs/scaling.md, written between its markers from the cost model and docs/measured: `make figures`.

A marker is `<!-- measured: NAME -->`, and what follows it, up to `<!-- end -->`, is written by the function NAME.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

from results_page import MARKER

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "benchmarks"))

from cost_machine import BAND, FAST, GIB, H100, SLOW, Rates  # noqa: E402
from cost_model import (  # noqa: E402
    BFLOAT16,
    GROUPRL,
    GROUPRL_VLLM,
    QWEN_1_5B,
    QWEN_7B,
    QWEN_32B,
    VERL,
    Batch,
    ModelShape,
    Way,
    savings,
    shape_of,
    training,
)
from cost_plan import STAGES, Plan, best, memory, placements, step  # noqa: E402
from scaling import LENGTHS, STANDARD, at_length, both, ratios_to_verl, span  # noqa: E402
from scaling_fit import (  # noqa: E402
    STAGES as MEASURED_STAGES,
)
from scaling_fit import (  # noqa: E402
    UNITS,
    cpu_peak,
    errors,
    growth_points,
    libraries_bytes,
    load,
    rates,
    step_seconds,
)
from scaling_points import SHAPES  # noqa: E402

PAGE = DOCS / "scaling.md"
RANKS = DOCS / "measured" / "ranks.json"
MODELS = (QWEN_1_5B, QWEN_7B, QWEN_32B)
GPUS = (1, 8, 64)
QUICKSTART = Batch(prompts=8, G=8, prompt_tokens=46, completion_tokens=6, longest_tokens=16, dead_share=0.33)
LONG_PROMPT = Batch(
    prompts=64, G=8, prompt_tokens=4000, completion_tokens=400, longest_tokens=1024, dead_share=0.4
)
LONG_COMPLETION = Batch(
    prompts=64, G=16, prompt_tokens=200, completion_tokens=6000, longest_tokens=16_384, dead_share=0.4
)


def written(text: str) -> str:
    """The page with the tables between its markers.

    Raises:
        KeyError: A marker of a name that is none of `PARTS`.
    """
    return MARKER.sub(lambda match: f"{match[1]}{PARTS[match['name']]()}\n{match[3]}", text)


def measured_rates() -> Rates:
    return rates(load()["rates"])


def call_s() -> float:
    return float(load()["rates"]["call_s"])


def state() -> str:
    """What was measured, where."""
    points = load()["points"]
    machines = "; ".join(sorted({point["machine"] for point in points}))
    fitted = sum(point["fitted"] for point in points)
    return (
        f"{len(points)} points, {fitted} of them fitted and {len(points) - fitted} held out, each of four stages. "
        f"Machine: {machines}."
    )


def fitted() -> str:
    found = load()["rates"]
    return table(
        ["what", "rate"],
        [[UNITS[name][0], f"{value / UNITS[name][1]:.3g} {UNITS[name][2]}"] for name, value in found.items()],
    )


def fit_errors() -> str:
    found = errors(load()["points"], SHAPES, measured_rates())
    rows = [
        [
            f"{kind}, {of['points']} points",
            *(f"{of[s]['median']:.0%} ({of[s]['most']:.0%})" for s in (*MEASURED_STAGES, "step")),
        ]
        for kind, of in found.items()
    ]
    return table(["median (largest) error", *MEASURED_STAGES, "the whole step"], rows)


def growth() -> str:
    """Whole steps and peaks that were measured on other days, for other reasons."""
    found, libraries = measured_rates(), libraries_bytes()
    rows = []
    for axis in dict.fromkeys(point["axis"] for point in growth_points()):
        mine = [point for point in growth_points() if point["axis"] == axis]
        seconds = [step_seconds(p["shape"], p["batch"], found) / p["ours"]["seconds"] - 1 for p in mine]
        peaks = [cpu_peak(p["shape"], p["batch"], libraries) / GIB / p["ours"]["peak_gib"] - 1 for p in mine]
        rows.append(
            [
                axis,
                f"{mine[0]['value']:,} to {mine[-1]['value']:,}",
                *(
                    f"{median(map(abs, e)):.0%} ({min(e):+.0%} to {max(e):+.0%})".replace("-", "−")
                    for e in (seconds, peaks)
                ),
            ]
        )
    return table(["varied", "", "time: median error (range)", "peak memory: median error (range)"], rows)


def band() -> str:
    """Both ends of the assumptions."""
    words = {
        "training": "share of the bfloat16 rate, forward and backward",
        "prefill": "the same, forward alone",
        "float32": "share of the float32 rate, LM head",
        "bandwidth": "share of the memory's rate",
        "transfer": "share of links and network",
        "overlap": "share of the gradients' transfer that hides behind arithmetic",
        "call_factor": "a layer's call on that host, over the one measured here",
        "step_s": "what vLLM takes for a decoding step beside the GPU's work, s",
        "reduce_s": "an all-reduce of tensor parallelism beside its bytes, s",
        "switch_s": "an engine that shares its GPU with training going to sleep and waking, s",
    }
    names = [field.name for field in fields(FAST) if field.name != "name"]
    return table(
        ["assumed", "fast end", "slow end"],
        [[words[name], f"{getattr(FAST, name):g}", f"{getattr(SLOW, name):g}"] for name in names],
    )


def models() -> str:
    rows = [
        [
            shape.name,
            f"{shape.parameters / 1e9:.2f}",
            f"{shape.layers} × {shape.hidden:,}",
            f"{16 * shape.parameters / GIB:,.0f}",
            f"{2 * shape.parameters / GIB:,.0f}",
            f"{BFLOAT16 * shape.cache_numbers / 2**20:.3f}",
            " / ".join(f"{shape.saved_bytes(BFLOAT16, checkpointing=k) / 2**20:.2f}" for k in (False, True)),
        ]
        for shape in MODELS
    ]
    return table(
        [
            "",
            "parameters, B",
            "layers × width",
            "weights, gradients, moments, GiB",
            "a bfloat16 copy, GiB",
            "keys and values, MiB a token",
            "kept for backward, MiB a token: all / checkpointing",
        ],
        rows,
    )


def all_placements(shape: ModelShape, gpus: int, batch: Batch = STANDARD) -> list[Plan]:
    return placements(shape, batch, gpus, gpu=H100, call_s=call_s())


def predictions() -> str:
    """For each model and number of GPUs the best placement of each way."""
    rows = []
    for shape in MODELS:
        for gpus in GPUS:
            plans = all_placements(shape, gpus)
            for way, mode in (
                (GROUPRL, "full"),
                (GROUPRL, "adapters"),
                (GROUPRL_VLLM, "full"),
                (VERL, "full"),
            ):
                mine = [p for p in plans if p.way is way and (p.mode == "full") is (mode == "full")]
                if not mine:  # vLLM for grouprl on several machines
                    continue
                rows.append([shape.name, str(gpus), way.name, *cells(mine, mode)])
    return table(["", "H100", "", "placement", "needs, GiB", "s a step", "completions an hour"], rows)


def cells(plans: Sequence[Plan], mode: str) -> list[str]:
    chosen = best(plans)
    if chosen is None:
        nearest = min((memory(plan) for plan in plans), key=lambda found: found.needed)
        return ["all weights" if mode == "full" else "LoRA", "–", f"does not fit: {nearest.lacking}", ""]
    found = memory(chosen)
    fast, slow = (step(chosen, reached, found) for reached in BAND)
    return [
        chosen.name,
        f"{found.needed / GIB:.0f}",
        span(fast.total, slow.total),
        f"{slow.completions_per_hour:,.0f} to {fast.completions_per_hour:,.0f}",
    ]


def stages() -> str:
    """Where the time goes."""
    rows = []
    for shape, gpus in ((QWEN_1_5B, 1), (QWEN_1_5B, 8), (QWEN_7B, 8), (QWEN_7B, 64), (QWEN_32B, 64)):
        plans = all_placements(shape, gpus)
        for way in (GROUPRL, VERL):
            chosen = best([p for p in plans if p.way is way and p.mode == "full"])
            if chosen is None:
                continue
            found = memory(chosen)
            fast, slow = (step(chosen, reached, found) for reached in BAND)
            rows.append(
                [
                    f"{shape.name}, {gpus}",
                    way.name,
                    *(span(fast.seconds[stage], slow.seconds[stage]) for stage in STAGES),
                ]
            )
    return table(["", "", *STAGES], rows)


def fits() -> str:
    """GiB on the fullest GPU by placement, bold where it fits."""
    rows = []
    kinds: dict[str, Callable[[Plan], bool]] = {
        "DP": lambda p: p.way is GROUPRL and p.mode == "full" and not p.sharded,
        "FSDP": lambda p: p.way is GROUPRL and p.mode == "full" and p.sharded,
        "LoRA 32, DP": lambda p: p.way is GROUPRL and p.mode == "lora" and not p.sharded,
        "LoRA 32, FSDP": lambda p: p.way is GROUPRL and p.mode == "lora" and p.sharded,
        "LoRA on 4 bits, DP": lambda p: p.mode == "qlora",
        "FSDP, vLLM": lambda p: p.way is GROUPRL_VLLM and p.mode == "full" and p.sharded,
        "verl: FSDP, vLLM over 1, 2, 4, 8 GPUs": lambda p: p.way is VERL,
    }
    for shape in MODELS:
        for gpus in GPUS:
            plans = all_placements(shape, gpus)
            row = [shape.name, str(gpus)]
            for kind in kinds.values():
                found = [memory(p) for p in plans if kind(p)]
                row.append(
                    ", ".join(
                        f"**{m.needed / GIB:.0f}**" if m.fits else f"{m.needed / GIB:.0f}" for m in found
                    )
                    or "–"
                )
            rows.append(row)
    return table(["", "H100", *kinds], rows)


def saved() -> str:
    rows = []
    for name, batch in (
        ("the quickstart", QUICKSTART),
        ("the standard step", STANDARD),
        ("long prompts", LONG_PROMPT),
        ("long completions", LONG_COMPLETION),
    ):
        factors = savings(batch)
        rows.append(
            [
                f"{name}: {batch.G} × ({batch.prompt_tokens:,} + {batch.completion_tokens:,}), "
                f"{batch.dead_share:.0%} dead",
                *(f"{factors[k]:.2f}" for k in ("prefill", "shared prompt", "dead groups", "training")),
            ]
        )
    return table(
        ["tokens, plain over grouprl's", "prefill", "shared prompt", "dead groups", "training, both"], rows
    )


def head() -> str:
    """What the LM head in float32 costs on a GPU."""
    rows = []
    for shape in MODELS:
        work = training(shape, STANDARD, GROUPRL, BFLOAT16, micro_batch_tokens=16_384, checkpointing=True)
        shares = []
        for reached in BAND:
            slow, fast = (
                reached.rates(H100, 0.0, training=True, head_float32=kind).seconds(work)
                for kind in (True, False)
            )
            shares.append(slow / fast)
        rows.append(
            [shape.name, f"{work.head / work.operations:.0%}", f"{min(shares):.1f} to {max(shares):.1f}"]
        )
    return table(["", "its share of training's operations", "training's time, over a head in bfloat16"], rows)


def move() -> str:
    """verl's seconds over ours, by completion length."""
    rows = []
    for shape, gpus in ((QWEN_1_5B, 1), (QWEN_1_5B, 8), (QWEN_1_5B, 64), (QWEN_7B, 8), (QWEN_7B, 64)):
        chosen = [at_length(Plan(shape, STANDARD, gpus, call_s=call_s()), tokens) for tokens in LENGTHS]
        rows += [
            [f"{shape.name}, {gpus}", engine, *(both(ratios_to_verl(one, way)) for one in chosen)]
            for way, engine in ((GROUPRL, "its own"), (GROUPRL_VLLM, "vLLM"))
            if gpus <= H100.in_machine or way is GROUPRL
        ]
    return table(["model, H100", "grouprl's engine", *(f"{tokens:,}" for tokens in LENGTHS)], rows)


def rule() -> str:
    """For each model and number of GPUs, what the ratios say at the standard step."""
    rows = []
    for shape in MODELS:
        for gpus in GPUS:
            chosen = at_length(Plan(shape, STANDARD, gpus, call_s=call_s()), STANDARD.completion_tokens)
            own, served = (ratios_to_verl(chosen, way) for way in (GROUPRL, GROUPRL_VLLM))
            rows.append([shape.name, str(gpus), both(own), both(served), verdict(chosen, own, served)])
    return table(["", "H100", "verl / grouprl", "verl / grouprl with vLLM", "so"], rows)


def verdict(chosen: Mapping[Way, Plan | None], own: Sequence[float], served: Sequence[float]) -> str:
    """What to take, where all weights are trained."""
    if chosen[VERL] is None and chosen[GROUPRL] is None:
        return "neither holds all weights: adapters (above), or more GPUs"
    if chosen[GROUPRL] is None:
        return "**move**: grouprl holds adapters alone"
    most = max(own, served, key=prod) if served else own
    engine = "its own engine" if most is own else "vLLM as its engine"
    if min(most) >= 1:
        return f"stay, with {engine}"
    return "**move**" if max(most) < 1 else f"either (stay with {engine}): the band holds both"


def largest() -> str:
    """Parameters that fit, in billions, by bisection over shapes like the known ones."""
    kinds: dict[str, tuple[str, Callable[[Plan], bool]]] = {
        "grouprl, all weights": ("full", lambda p: p.way is GROUPRL),
        "grouprl, LoRA": ("lora", lambda p: p.way is GROUPRL),
        "grouprl, LoRA on 4 bits": ("qlora", lambda p: p.way is GROUPRL),
        "verl, all weights": ("full", lambda p: p.way is VERL),
    }
    rows = []
    for gpus in GPUS:
        row = [str(gpus)]
        for mode, kind in kinds.values():

            def holds(
                parameters: float, mode: str = mode, kind: Callable[[Plan], bool] = kind, n: int = gpus
            ) -> bool:
                plans = placements(shape_of(parameters), STANDARD, n, modes=(mode,), call_s=call_s())
                return any(memory(p).fits for p in plans if kind(p))

            low, high = 1e8, 1e12
            for _ in range(24):
                middle = (low * high) ** 0.5
                low, high = (middle, high) if holds(middle) else (low, middle)
            row.append(f"{low / 1e9:.2g}" if low < 1e11 else f"{low / 1e9:.0f}")
        rows.append(row)
    return table(["H100", *kinds], rows)


def by_ranks() -> str:
    """Time of a step and memory of a rank, by number of ranks and strategy, with one process as the unit."""
    return ranks_table(json.loads(RANKS.read_text(encoding="utf-8")) if RANKS.exists() else None)


def ranks_table(found: Mapping[str, Any] | None) -> str:
    """Medians over runs, the least and the greatest in parentheses; None says that nothing was measured."""
    if found is None:
        return "*Not measured yet.*"
    head = ["", "threads a rank", "s a step", "of one process", "sampling, s", "training, s", "GiB a rank"]
    alone = found["points"]["one process"]["runs"]
    rows = [
        [
            name,
            str(point["threads"]),
            _spread([run["seconds_step"] for run in point["runs"]]),
            _spread([run["seconds_step"] / one["seconds_step"] for run, one in zip(point["runs"], alone)]),
            *(f"{median(run[part] for run in point['runs']):.2f}" for part in ("seconds_rollout", "seconds_train")),
            _spread([run["peak_memory_gib"] for run in point["runs"]]),
        ]
        for name, point in found["points"].items()
    ]  # fmt: skip
    said = f"`{found['command']}`: medians of {len(alone)} runs, the least and the greatest in parentheses"
    return f"{table(head, rows)}\n\n{said}; {found['machine']}."


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


PARTS: Mapping[str, Callable[[], str]] = {
    "state": state,
    "fitted": fitted,
    "errors": fit_errors,
    "growth": growth,
    "band": band,
    "models": models,
    "predictions": predictions,
    "stages": stages,
    "fits": fits,
    "savings": saved,
    "ranks": by_ranks,
    "head": head,
    "move": move,
    "rule": rule,
    "largest": largest,
}


def main() -> None:
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
