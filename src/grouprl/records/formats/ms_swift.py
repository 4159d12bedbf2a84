"""ms-swift's `log_completions`: completions.jsonl, a line a logged step, with a list a column; or a line a completion.

The transformers trainer writes the step as text, and what its queue held; the Megatron trainers write `gen_step`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from grouprl.errors import InputError
from grouprl.records.columns import polars
from grouprl.records.formats.expressions import components, extras, fingerprint, number, weighted_sum
from grouprl.records.formats.format import Format, Head, Layout, Options
from grouprl.records.formats.unpacking import rows_of_columns

if TYPE_CHECKING:
    from grouprl.records.formats.format import Types

_OWN = ("step", "gen_step", "prompt", "completion", "advantages", "reward")


def _recognises(head: Head) -> bool:
    if head.kind != "jsonl" or not head.has("prompt", "completion"):
        return False
    pairs = [(line.get("prompt"), line.get("completion")) for line in head.records]
    columnar = any(isinstance(prompt, list) and isinstance(completion, list) for prompt, completion in pairs)
    return (columnar and head.has("advantages")) or head.has("gen_step")


def _unpack(line: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if isinstance(line["completion"], list):
        yield from rows_of_columns(line, "prompt", "completion")
    else:
        yield line


def _layout(types: Types, options: Options) -> Layout:
    pl = polars()
    weights = options.rewards
    if weights is None and "reward" in types:
        weights = {"reward": 1.0}
    elif weights is None:  # what stands between the completion and the advantage
        names = list(types)
        last = names.index("advantages") if "advantages" in names else len(names)
        weights = {name: 1.0 for name in names[:last] if name not in _OWN and types[name].is_numeric()}
    if not weights:
        raise InputError(
            f"read: ms_swift: no column of numbers beside {', '.join(_OWN)}, expected one for each reward function; "
            "name them with rewards= (--rewards)"
        )
    step = next((name for name in ("step", "gen_step") if name in types), None)
    columns = {
        "step": pl.lit(None, pl.Int64()) if step is None else pl.col(step).cast(pl.Int64),
        "prompt_id": fingerprint(pl.col("prompt")),
        "prompt": pl.col("prompt"),
        "completion": pl.col("completion"),
        "reward": weighted_sum(weights),
        **({} if "reward" in weights else components(weights)),
        "scored": weighted_sum(weights).is_not_null(),
    }
    if "advantages" in types:
        columns["advantage"] = number("advantages")
    own = {"prompt": pl.String(), "completion": pl.String(), "step": pl.String(), "advantages": pl.Float64()}
    own |= {name: pl.Float64() for name in weights}
    notes: tuple[str, ...] = ()
    if options.rewards is None and len(weights) > 1:
        notes = (
            f"the reward is the plain sum of {', '.join(weights)}: the file does not say the weights; name them with "
            "rewards= (--rewards)",
        )
    return Layout(
        columns | extras(types, {*_OWN, *weights}),
        key=pl.col("prompt"),
        types={name: dtype for name, dtype in own.items() if name in types},
        notes=notes,
    )


FORMAT = Format(
    name="ms_swift",
    framework="ms-swift",
    written_by="swift.rlhf_trainers.grpo_trainer.GRPOTrainer.log (log_completions=True)",
    verified=None,
    missing=("group ids", "weights of several rewards", "token counts", "finish reasons", "log-probs"),
    files=("completions.jsonl", "*/completions.jsonl"),
    recognises=_recognises,
    repeats=True,
    layout=_layout,
    unpack=_unpack,
)
