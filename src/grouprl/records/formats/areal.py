"""AReaL's trajectory dump: `rollout/{version}/{task_id}.jsonl`, a line a sample; a file is a group."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from grouprl.records.columns import polars
from grouprl.records.formats.expressions import extras, fingerprint, number, whole, within_step
from grouprl.records.formats.format import FILE_STEP, Format, Head, Layout, Options

if TYPE_CHECKING:
    from grouprl.records.formats.format import Types

_OWN = ("task_id", "sample_idx", "seqlen", "prompt_len", "reward", "prompt", "completion")


def _recognises(head: Head) -> bool:
    return head.kind == "jsonl" and head.has("task_id", "sample_idx", "seqlen", "prompt_len", "reward")


def _layout(types: Types, options: Options) -> Layout:
    pl = polars()
    # The policy's version, from 0, when the sample's last token was drawn: the nearest thing to a step.
    step = whole("tail_version") if "tail_version" in types else pl.col(FILE_STEP)
    columns = {
        "step": step,
        "group_id": within_step(step, pl.col("task_id")),
        "prompt_id": fingerprint(pl.col("prompt")),
        "sample_index": whole("sample_idx"),
        "prompt": pl.col("prompt"),
        "completion": pl.col("completion"),
        "reward": number("reward"),
        "scored": number("reward").is_not_null(),
        "prompt_tokens": whole("prompt_len"),
        "completion_tokens": whole("seqlen") - whole("prompt_len"),
    }
    own = {"task_id": pl.String(), "prompt": pl.String(), "completion": pl.String()}
    return Layout(
        columns | extras(types, _OWN), types={name: dtype for name, dtype in own.items() if name in types}
    )


def _step(path: Path) -> int | None:
    return int(path.parent.name) if path.parent.name.isdecimal() else None


FORMAT = Format(
    name="areal",
    framework="AReaL",
    written_by="areal.infra.workflow_executor.WorkflowExecutor._dump_trajectory",
    verified=None,
    missing=(
        "advantages",
        "finish reasons",
        "log-probs",
        "reward components",
        "samples without a completion",
    ),
    files=("rollout/[0-9]*/*.jsonl", "[0-9]*/*.jsonl", "logs/*/*/*/rollout/[0-9]*/*.jsonl"),
    recognises=_recognises,
    layout=_layout,
    step_in_name=_step,
)
