"""verl's `trainer.rollout_data_dir`: a file of JSON lines a step.

The classic trainer writes no uid, and the order is that of the batch after it was balanced over ranks; the newer one
writes uid as `{uid}_{session}_{index}`, sorted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grouprl.records.columns import polars
from grouprl.records.formats.expressions import (
    components,
    extras,
    fingerprint,
    looks_like_reward,
    number,
    text,
    whole,
    within_step,
)
from grouprl.records.formats.format import Format, Head, Layout, Options

if TYPE_CHECKING:
    from grouprl.records.formats.format import Types

_OWN = ("input", "output", "score", "step", "uid")
_SUFFIXES = r"_\d+_\d+$"


def _recognises(head: Head) -> bool:
    return head.kind == "jsonl" and head.has("input", "output", "score", "step")


def _layout(types: Types, options: Options) -> Layout:
    pl = polars()
    names = options.rewards
    if names is None:
        names = {
            name: 1.0 for name, dtype in types.items() if name not in _OWN and looks_like_reward(name, dtype)
        }
    columns = {
        "step": whole("step"),
        "prompt_id": fingerprint(pl.col("input")),
        "prompt": pl.col("input"),
        "completion": pl.col("output"),
        "reward": number("score"),
        **components(names),
        "scored": number("score").is_not_null(),
    }
    key = pl.col("input")
    if "uid" in types:
        uid = text("uid", types)
        columns["group_id"] = within_step(whole("step"), uid.str.replace(_SUFFIXES, ""))
        columns["sample_index"] = uid.str.extract(r"_(\d+)_\d+$").cast(pl.Int64)
        key = None
    used = {*_OWN, *names}
    own_types = {"input": pl.String(), "output": pl.String(), "step": pl.Int64(), "uid": pl.String()}
    return Layout(
        columns | extras(types, used),
        key=key,
        types={name: dtype for name, dtype in own_types.items() if name in types},
    )


FORMAT = Format(
    name="verl",
    framework="verl",
    written_by="verl.trainer.ppo.ray_trainer.RayPPOTrainer._write_generations (trainer.rollout_data_dir)",
    verified="0.9.1",
    missing=(
        "advantages",
        "token counts",
        "finish reasons",
        "log-probs",
        "group ids, where there is no uid",
        "a KL penalty in the reward: score is the reward before it",
    ),
    files=("[0-9]*.jsonl", "*/[0-9]*.jsonl"),
    recognises=_recognises,
    layout=_layout,
)
