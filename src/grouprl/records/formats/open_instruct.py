"""open-instruct's `--save_traces`: shards of JSON lines, a line a rollout; token ids, no text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grouprl.records.columns import polars
from grouprl.records.formats.expressions import (
    extras,
    list_fingerprint,
    mean_of,
    number,
    whole,
    within_step,
)
from grouprl.records.formats.format import Format, Head, Layout, Options

if TYPE_CHECKING:
    from grouprl.records.formats.format import Types

_OWN = (
    "step",
    "sample_idx",
    "prompt_idx",
    "prompt_tokens",
    "response_tokens",
    "reward",
    "advantage",
    "finish_reason",
    "logprobs",
)


def _recognises(head: Head) -> bool:
    return head.kind == "jsonl" and head.has("prompt_idx", "sample_idx", "response_tokens", "reward")


def _layout(types: Types, options: Options) -> Layout:
    pl = polars()
    step, tokens, real = whole("step"), pl.List(pl.Int64()), pl.List(pl.Float64())
    columns = {
        "step": step,
        "group_id": within_step(step, pl.col("prompt_idx")),
        "prompt_id": list_fingerprint("prompt_tokens"),
        "reward": number("reward"),
        "scored": number("reward").is_not_null(),
        "prompt_tokens": pl.col("prompt_tokens").list.len().cast(pl.Int64),
        "completion_tokens": pl.col("response_tokens").list.len().cast(pl.Int64),
        "prompt_token_ids": pl.col("prompt_tokens"),
        "token_ids": pl.col("response_tokens"),
    }
    if "advantage" in types:
        columns["advantage"] = number("advantage")
    if "finish_reason" in types:
        columns["finish_reason"] = pl.col("finish_reason").cast(pl.String)
    if isinstance(types.get("logprobs"), pl.List):
        columns["logprobs_sampler"] = pl.col("logprobs").cast(real)
        columns["logprob_mean_sampler"] = mean_of("logprobs")
    own = {"prompt_tokens": tokens, "response_tokens": tokens, "logprobs": real, "step": pl.Int64()}
    return Layout(
        columns | extras(types, _OWN), types={name: dtype for name, dtype in own.items() if name in types}
    )


FORMAT = Format(
    name="open_instruct",
    framework="open-instruct",
    written_by="open_instruct/rl_utils.py, RolloutRecord (--save_traces)",
    verified=None,
    missing=(
        "text: prompts and completions are token ids",
        "the place within the group",
        "reward components",
    ),
    files=("*_rollouts_[0-9]*.jsonl", "*/*_rollouts_[0-9]*.jsonl"),
    recognises=_recognises,
    layout=_layout,
)
