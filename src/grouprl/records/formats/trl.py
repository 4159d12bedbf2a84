"""TRL's `log_completions`: a Parquet file each time that the trainer logs.

The file holds what the trainer's queue held, the last `generation_batch_size` completions: with more than one update a
generation, or an evaluation at the same step, completions stand in two files or are missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grouprl.errors import InputError
from grouprl.records.columns import polars
from grouprl.records.formats.expressions import (
    components,
    extras,
    fingerprint,
    number,
    text,
    weighted_sum,
    whole,
)
from grouprl.records.formats.format import Format, Head, Layout, Options

if TYPE_CHECKING:
    from grouprl.records.formats.format import Types

_OWN = ("step", "prompt", "completion", "advantage")


def _recognises(head: Head) -> bool:
    return head.kind == "parquet" and head.has("step", "prompt", "completion") and not head.has("group_id")


def _layout(types: Types, options: Options) -> Layout:
    pl = polars()
    weights = options.rewards
    if weights is None:  # pandas writes the scores of a reward function as floats, None among them as NaN
        weights = {name: 1.0 for name, dtype in types.items() if name not in _OWN and dtype.is_float()}
    if not weights:
        raise InputError(
            f"read: trl: no column of floats beside {', '.join(_OWN)}, expected one for each reward function; "
            "name them with rewards= (--rewards)"
        )
    prompt = text("prompt", types, roles=True)
    columns = {
        "step": whole("step"),
        "prompt_id": fingerprint(prompt),
        "prompt": prompt,
        "completion": text("completion", types),
        "reward": weighted_sum(weights),
        **components(weights),
        "scored": weighted_sum(weights).is_not_null(),
        "advantage": number("advantage") if "advantage" in types else pl.lit(None, pl.Float64()),
    }
    notes: tuple[str, ...] = ()
    if options.rewards is None and len(weights) > 1:
        notes = (
            f"the reward is the plain sum of {', '.join(weights)}: the files do not say the weights, nor whether a "
            "column of floats is a reward; name them with rewards= (--rewards)",
        )
    return Layout(
        columns | extras(types, {*_OWN, *weights}), key=prompt, types={"step": pl.Int64()}, notes=notes
    )


FORMAT = Format(
    name="trl",
    framework="TRL",
    written_by="trl.GRPOTrainer.log (log_completions=True)",
    verified="1.16.0",
    missing=(
        "group ids",
        "weights of several rewards",
        "token counts",
        "finish reasons",
        "log-probs",
    ),
    files=("completions/completions_*.parquet", "completions_*.parquet"),
    recognises=_recognises,
    repeats=True,
    layout=_layout,
)
