"""What a GRPO step takes on so many GPUs, by the cost model of docs/scaling.md: which placements fit, seconds by stage.

    python benchmarks/scaling.py --parameters 7e9 --gpus 8
    python benchmarks/scaling.py --model qwen2.5-1.5b --gpus 1 --completion-tokens 300 --longest-tokens 1024
    python benchmarks/scaling.py --config path/to/config.json --gpus 64 --gpu h200

No GPU is needed: it is arithmetic. Each time is a range, from what well-tuned code reaches of the data sheet to what
ragged batches do (docs/scaling.md has both ends, and how far off the model is where it can be checked). A row that does
not fit says by what. --lengths shows at which completion length verl becomes the faster one.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from cost_machine import BAND, GIB, GPUS
from cost_model import GROUPRL, GROUPRL_VLLM, KNOWN, VERL, Batch, ModelShape, Way, savings, shape_of
from cost_plan import MODES, STAGES, USABLE, Memory, Plan, best, memory, placements, step
from scaling_fit import load

STANDARD = Batch(
    prompts=128, G=8, prompt_tokens=200, completion_tokens=800, longest_tokens=2048, dead_share=0.4
)
"""Mathematics with a chain of thought: what the tables of docs/scaling.md are for."""
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"scaling: {message}; --help lists the options\n")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        shape, batch = chosen_shape(options), chosen_batch(options)
        plans = placements(
            shape,
            batch,
            options.gpus,
            gpu=GPUS[options.gpu],
            modes=MODES if options.mode == "all" else (options.mode,),
            rank=options.lora_rank,
            checkpointing=not options.no_checkpointing,
            micro_batch_tokens=options.micro_batch_tokens,
            beta=options.kl,
            reward_s=options.reward_seconds,
            reward_processes=options.reward_processes,
            call_s=measured_call_s(),
        )
    except ValueError as error:
        print(f"scaling: {error}", file=sys.stderr)
        return 2
    for line in report(plans, lengths=options.lengths):
        print(line)
    return 0


def parser() -> Parser:
    made = Parser(
        prog="scaling.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    model = made.add_argument_group("the model (one of the three)").add_mutually_exclusive_group()
    names = [shape.name.lower() for shape in KNOWN]
    model.add_argument("--model", choices=names, help="a known shape (default: qwen2.5-7b)")
    model.add_argument(
        "--parameters", type=float, help="about so many, as 7e9: the nearest known shape, widened"
    )
    model.add_argument(
        "--config", type=Path, help="the config.json of a transformers model of the Llama kind"
    )
    machine = made.add_argument_group("the machine")
    machine.add_argument("--gpus", type=int, default=8, help="how many (default: %(default)s)")
    machine.add_argument("--gpu", choices=GPUS, default="h100", help="of which kind (default: %(default)s)")
    step = made.add_argument_group("the step")
    for name, value, words in (
        ("--prompts", STANDARD.prompts, "prompts a step"),
        ("--group-size", STANDARD.G, "G, completions of each"),
        ("--prompt-tokens", STANDARD.prompt_tokens, "tokens of a prompt, on average"),
        ("--completion-tokens", STANDARD.completion_tokens, "tokens of a completion, on average"),
        (
            "--longest-tokens",
            STANDARD.longest_tokens,
            "most tokens of a completion; 0: all are of the average length",
        ),
    ):
        step.add_argument(name, type=int, default=value, help=f"{words} (default: %(default)s)")
    step.add_argument(
        "--dead-share",
        type=float,
        default=STANDARD.dead_share,
        help="share of groups whose rewards are all equal, which grouprl does not train on (default: %(default)s)",
    )
    step.add_argument("--kl", action="store_true", help="with a KL to the starting model (beta > 0)")
    step.add_argument(
        "--reward-seconds",
        type=float,
        default=0.07,
        help="of one completion on one core (default: %(default)s)",
    )
    step.add_argument(
        "--reward-processes",
        type=int,
        default=4,
        help="that score at a time, for each GPU (default: %(default)s)",
    )
    how = made.add_argument_group("how it is trained")
    how.add_argument(
        "--mode", choices=("all", *MODES), default="all", help="all weights, LoRA, LoRA on 4 bits"
    )
    how.add_argument("--lora-rank", type=int, default=32, help="(default: %(default)s)")
    how.add_argument("--no-checkpointing", action="store_true", help="layers keep all that backward needs")
    how.add_argument(
        "--micro-batch-tokens",
        type=int,
        default=16_384,
        help="most tokens of a forward (default: %(default)s)",
    )
    how.add_argument("--lengths", action="store_true", help="grouprl against verl over completion lengths")
    return made


def chosen_shape(options: argparse.Namespace) -> ModelShape:
    """The model that the command line names.

    Raises:
        ValueError: It cannot be one.
    """
    if options.config is not None:
        return shape_from_config(options.config)
    if options.parameters is not None:
        if not 1e7 <= options.parameters <= 1e12:
            raise ValueError(
                f"--parameters {options.parameters:g}: expected 1e7 to 1e12, as 7e9 for 7 billion"
            )
        return shape_of(options.parameters)
    name = options.model or "qwen2.5-7b"
    return next(shape for shape in KNOWN if shape.name.lower() == name)


def shape_from_config(path: Path) -> ModelShape:
    """A shape from a model's config.json.

    Raises:
        ValueError: It is not there, is no JSON, or says not what a decoder of the Llama kind has.
    """
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"--config {path}: cannot be read ({error}); give a model's config.json") from error
    try:
        heads = int(found["num_attention_heads"])
        return ModelShape(
            name=str(found.get("_name_or_path") or path.parent.name or path.name),
            layers=int(found["num_hidden_layers"]),
            hidden=int(found["hidden_size"]),
            intermediate=int(found["intermediate_size"]),
            heads=heads,
            kv_heads=int(found.get("num_key_value_heads") or heads),
            head_dim=int(found.get("head_dim") or int(found["hidden_size"]) // heads),
            vocabulary=int(found["vocab_size"]),
            tied=bool(found.get("tie_word_embeddings", False)),
            bias=bool(found.get("attention_bias", found.get("model_type") == "qwen2")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"--config {path}: no decoder of the Llama kind ({type(error).__name__}: {error}); give --parameters"
        ) from error


def chosen_batch(options: argparse.Namespace) -> Batch:
    """The step that the command line names.

    Raises:
        ValueError: A number that cannot be.
    """
    for name in (
        "gpus",
        "prompts",
        "group_size",
        "prompt_tokens",
        "completion_tokens",
        "lora_rank",
        "micro_batch_tokens",
        "reward_processes",
    ):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(options, name)}: expected at least 1")
    if not 0 <= options.dead_share < 1:
        raise ValueError(f"--dead-share {options.dead_share:g}: expected a share of at least 0 and below 1")
    if not 0 <= options.reward_seconds < math.inf:
        raise ValueError(f"--reward-seconds {options.reward_seconds:g}: expected 0 or more")
    if options.longest_tokens and options.longest_tokens < options.completion_tokens:
        raise ValueError(
            f"--longest-tokens {options.longest_tokens}: expected at least --completion-tokens, "
            f"{options.completion_tokens}, or 0"
        )
    return Batch(
        options.prompts,
        options.group_size,
        options.prompt_tokens,
        options.completion_tokens,
        options.longest_tokens,
        options.dead_share,
    )


def measured_call_s() -> float:
    """Seconds of a layer's call on the machine that the model was fitted on."""
    return float(load()["rates"]["call_s"])


def report(plans: Sequence[Plan], *, lengths: bool) -> list[str]:
    """The tables, as Markdown."""
    first = plans[0]
    shape, batch = first.shape, first.batch
    lines = [
        f"{shape.name}: {shape.parameters / 1e9:.2f}B parameters, {shape.layers} layers of {shape.hidden}; "
        f"{first.gpus} × {first.gpu.name}; {batch.prompts:g} prompts × {batch.G} completions, {batch.prompt_tokens} + "
        f"{batch.completion_tokens} tokens (at most {batch.longest}), {batch.dead_share:.0%} of groups without spread",
        "",
        *placement_table(plans),
        "",
    ]
    for way in dict.fromkeys(plan.way for plan in plans):
        chosen = best([plan for plan in plans if plan.way is way])
        if chosen is not None:
            lines += [
                f"{way.name}, {chosen.name}, seconds by stage (fast to slow):",
                "",
                *stage_table(chosen),
                "",
            ]
    lines += saved_lines(batch)
    if lengths:
        lines += ["", *length_table(plans)]
    return lines


def placement_table(plans: Sequence[Plan]) -> list[str]:
    lines = [
        f"| | | needs, GiB of {USABLE * plans[0].gpu.memory / GIB:.0f} | s a step | completions an hour |"
    ]
    lines.append("|---|---|---|---|---|")
    for plan in plans:
        found = memory(plan)
        if not found.fits:
            lines.append(f"| {plan.way.name} | {plan.name} | does not fit | {found.lacking} | |")
            continue
        fast, slow = (step(plan, reached, found) for reached in BAND)
        lines.append(
            f"| {plan.way.name} | {plan.name} | {found.needed / GIB:.0f} | {span(fast.total, slow.total)} | "
            f"{slow.completions_per_hour:,.0f} to {fast.completions_per_hour:,.0f} |"
        )
    return lines


def stage_table(plan: Plan) -> list[str]:
    found = memory(plan)
    fast, slow = (step(plan, reached, found) for reached in BAND)
    cells = [span(fast.seconds[stage], slow.seconds[stage]) for stage in STAGES]
    return [
        "| " + " | ".join(STAGES) + " |",
        "|" + "---|" * len(STAGES),
        "| " + " | ".join(cells) + " |",
        "",
        f"{holds(found)}",
    ]


def holds(found: Memory) -> str:
    """What fits at a time, in words."""
    return (
        f"micro-batches of {found.micro_batch_tokens:,} tokens; the sampler has room for {found.at_once:,.0f} "
        "completions at a time"
    )


def saved_lines(batch: Batch) -> list[str]:
    saved = savings(batch)
    return [
        "tokens of the plain way over grouprl's: "
        + ", ".join(f"{name} {factor:.2f}" for name, factor in saved.items())
        + " (training = shared prompt × dead groups)"
    ]


def length_table(plans: Sequence[Plan]) -> list[str]:
    """verl's time over grouprl's, with each engine, by completion length: above 1 grouprl is the faster."""
    first = plans[0]
    head = [
        "completion tokens",
        "grouprl, s",
        "grouprl, vLLM samples, s",
        "verl, s",
        "verl / grouprl",
        "verl / with vLLM",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for tokens in LENGTHS:
        chosen = at_length(first, tokens)
        cells = [
            "does not fit" if plan is None else span(*(step(plan, reached).total for reached in BAND))
            for plan in chosen.values()
        ]
        cells += [both(ratios_to_verl(chosen, way)) for way in (GROUPRL, GROUPRL_VLLM)]
        lines.append(f"| {tokens:,} | " + " | ".join(cells) + " |")
    return lines


def at_length(like: Plan, completion_tokens: int) -> dict[Way, Plan | None]:
    """The best placement of each way that trains all weights, at a completion length; None where none fits.

    The longest completion is 2.56 times the average, as in `STANDARD`.
    """
    batch = replace(
        like.batch, completion_tokens=completion_tokens, longest_tokens=int(2.56 * completion_tokens)
    )
    plans = placements(
        like.shape,
        batch,
        like.gpus,
        gpu=like.gpu,
        modes=("full",),
        reward_s=like.reward_s,
        reward_processes=like.reward_processes,
        call_s=like.call_s,
        checkpointing=like.checkpointing,
        micro_batch_tokens=like.micro_batch_tokens,
        beta=like.beta,
    )
    return {way: best([plan for plan in plans if plan.way is way]) for way in (GROUPRL, GROUPRL_VLLM, VERL)}


def ratios_to_verl(chosen: Mapping[Way, Plan | None], way: Way) -> list[float]:
    """verl's seconds over those of a way of grouprl's, at both ends of the band; empty where one does not fit."""
    ours, theirs = chosen[way], chosen[VERL]
    if ours is None or theirs is None:
        return []
    return [step(theirs, reached).total / step(ours, reached).total for reached in BAND]


def both(ratios: Sequence[float]) -> str:
    return " and ".join(f"{ratio:.2f}" for ratio in ratios) or "–"


def span(low: float, high: float) -> str:
    """Two numbers with as many digits as they are worth.

    >>> span(0.0123, 0.5), span(1.26, 31.4), span(118.2, 303.9), span(0.0, 0.0)
    ('0.01–0.5', '1.3–31', '118–304', '0')
    """
    shown = [number(value) for value in (low, high)]
    return shown[0] if shown[0] == shown[1] else "–".join(shown)


def number(value: float) -> str:
    if value < 0.005:
        return "0"
    digits = max(0, 1 - math.floor(math.log10(value)))
    return f"{value:.{min(digits, 2)}f}".rstrip("0").rstrip(".") if digits else f"{value:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
