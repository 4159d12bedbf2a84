"""tinker-cookbook's rollout summaries: JSON lines, a line a trajectory; rewards and lengths, no text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from grouprl.records.columns import polars
from grouprl.records.formats.expressions import components, extras, number, whole, within_step
from grouprl.records.formats.format import Format, Head, Layout, Options

if TYPE_CHECKING:
    from grouprl.records.formats.format import Types

_TAKEN = ("schema_version", "steps", "total_reward", "final_reward")


def _recognises(head: Head) -> bool:
    return head.kind == "jsonl" and head.has("group_idx", "traj_idx", "total_reward", "steps")


def _unpack(line: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One row: the first observation is the prompt; what the environment said later is no completion token."""
    steps = line["steps"] or []
    yield {name: value for name, value in line.items() if name not in _TAKEN} | {
        "total": line["total_reward"],
        "final": line.get("final_reward"),
        "per_step": sum(step.get("reward") or 0.0 for step in steps),
        "prompt_length": steps[0]["ob_len"] if steps else None,
        "completion_length": sum(step["ac_len"] for step in steps) if steps else None,
        "turns": len(steps),
    }


def _layout(types: Types, options: Options) -> Layout:
    pl = polars()
    real, count = pl.Float64(), pl.Int64()
    step = whole("iteration")
    columns = {
        "step": step,
        "group_id": within_step(step, pl.col("group_idx")),
        "sample_index": whole("traj_idx"),
        "reward": number("total"),
        **components(("final", "per_step")),
        "scored": number("total").is_not_null(),
        "prompt_tokens": whole("prompt_length"),
        "completion_tokens": whole("completion_length"),
    }
    used = (
        "iteration",
        "group_idx",
        "traj_idx",
        "total",
        "final",
        "per_step",
        "prompt_length",
        "completion_length",
    )
    own = dict.fromkeys(("total", "final", "per_step"), real) | dict.fromkeys(
        ("prompt_length", "completion_length", "iteration"), count
    )
    return Layout(columns | extras(types, used), types=own)


FORMAT = Format(
    name="tinker_cookbook",
    framework="tinker-cookbook",
    written_by="tinker_cookbook.rl.rollout_logging.serialize_rollout_summaries",
    verified="0.6.1",
    missing=("text and token ids", "prompt ids", "advantages", "finish reasons", "log-probs"),
    files=(
        "train_rollout_summaries.jsonl",
        "*/train_rollout_summaries.jsonl",
        "*/*/train_rollout_summaries.jsonl",
    ),
    recognises=_recognises,
    layout=_layout,
    unpack=_unpack,
)
