"""NeMo-RL's training data: a file of JSON lines a step, each value a list of one.

It carries no prompt id, so groups are runs of equal prompts: the token ids before the first trained one, or, without
these, all messages but the last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grouprl.records.columns import polars
from grouprl.records.formats.expressions import extras, fingerprint, number
from grouprl.records.formats.format import FILE_STEP, Format, Head, Layout, Options

if TYPE_CHECKING:
    from grouprl.records.formats.format import Types

_TAKEN = frozenset(
    (
        "content",
        "rewards",
        "filtered_rewards",
        "input_lengths",
        "token_ids",
        "token_loss_mask",
        "advantages",
        "generation_logprobs",
        "prev_logprobs",
        "idx",
    )
)


def _recognises(head: Head) -> bool:
    return head.kind == "jsonl" and head.has("rewards", "input_lengths", "idx")


def _unpack(line: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One row. Right padding is beyond `input_lengths`; trained positions are those of `token_loss_mask`."""
    row = {name: _only(value) for name, value in line.items() if name not in _TAKEN}
    length = int(_only(line["input_lengths"]))
    content = _only(line.get("content")) or []
    messages = [content] if isinstance(content, str) else [str(message) for message in content]
    tokens = (_only(line.get("token_ids")) or [])[:length]
    trained = [bool(one) for one in (_only(line.get("token_loss_mask")) or [])[:length]]
    first = trained.index(True) if True in trained else len(trained)
    filtered = "filtered_rewards" in line
    row |= {
        "place": line["idx"],
        "prompt": "\n\n".join(messages[:-1]) if len(messages) > 1 else None,
        "completion": messages[-1] if messages else None,
        "prompt_key": ",".join(map(str, tokens[:first])) if tokens and trained else None,
        "total": _only(line["filtered_rewards" if filtered else "rewards"]),
        "prompt_length": first if trained else None,
        "completion_length": sum(trained) if trained else None,
        "credit": _first_trained(_only(line.get("advantages")), trained),
        "sampler": _mean_trained(_only(line.get("generation_logprobs")), trained),
        "trainer": _mean_trained(_only(line.get("prev_logprobs")), trained),
    }
    yield row


def _only(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _first_trained(values: Any, trained: list[bool]) -> float | None:
    """An advantage of the completion, or of its first trained token."""
    if not isinstance(values, list):
        return None if values is None else float(values)
    chosen = [value for value, train in zip(values, trained) if train]
    return chosen[0] if chosen else None


def _mean_trained(values: Any, trained: list[bool]) -> float | None:
    chosen = [value for value, train in zip(values, trained) if train] if isinstance(values, list) else []
    return sum(chosen) / len(chosen) if chosen else None


def _layout(types: Types, options: Options) -> Layout:
    pl = polars()
    key = pl.coalesce("prompt_key", "prompt")
    columns = {
        "step": pl.col(FILE_STEP),
        "prompt_id": fingerprint(key),
        "prompt": pl.col("prompt"),
        "completion": pl.col("completion"),
        "reward": number("total"),
        "scored": number("total").is_not_null(),
        "advantage": number("credit"),
        "prompt_tokens": pl.col("prompt_length"),
        "completion_tokens": pl.col("completion_length"),
        "logprob_mean_sampler": number("sampler"),
        "logprob_mean_trainer": number("trainer"),
    }
    own = (
        dict.fromkeys(("prompt", "completion", "prompt_key"), pl.String())
        | dict.fromkeys(("total", "credit", "sampler", "trainer"), pl.Float64())
        | dict.fromkeys(("prompt_length", "completion_length"), pl.Int64())
    )
    return Layout(columns | extras(types, {*own, "place"}), key=key, types=own)


def _step(path: Path) -> int | None:
    found = re.match(r"train_data_step(\d+)", path.name)
    return int(found[1]) if found else None


FORMAT = Format(
    name="nemo_rl",
    framework="NeMo-RL",
    written_by="nemo_rl.utils.logger.Logger.log_batched_dict_as_jsonl (train_data_step*.jsonl)",
    verified=None,
    missing=("group and prompt ids", "finish reasons", "reward components"),
    files=("train_data_step*.jsonl", "*/train_data_step*.jsonl"),
    recognises=_recognises,
    layout=_layout,
    unpack=_unpack,
    step_in_name=_step,
)
