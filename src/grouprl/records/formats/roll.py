"""ROLL's `rollout_dump_dir`: a file a step, one line of which holds all columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grouprl.records.columns import polars
from grouprl.records.formats.expressions import extras, fingerprint, number
from grouprl.records.formats.format import FILE_STEP, Format, Head, Layout, Options
from grouprl.records.formats.unpacking import rows_of_columns

if TYPE_CHECKING:
    from grouprl.records.formats.format import Types


def _recognises(head: Head) -> bool:
    line = head.records[0] if head.records else {}
    return isinstance(line.get("responses"), list) and isinstance(line.get("scores"), list)


def _unpack(line: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from rows_of_columns(line, "responses", "scores")


def _layout(types: Types, options: Options) -> Layout:
    pl = polars()
    step = (
        pl.coalesce(pl.col("global_step").cast(pl.Int64), FILE_STEP)
        if "global_step" in types
        else pl.col(FILE_STEP)
    )
    prompt = pl.col("prompt") if "prompt" in types else pl.lit(None, pl.String())
    # id names the prompt of the data set
    key = pl.concat_str([pl.col("id"), prompt.fill_null("")], separator="\n") if "id" in types else prompt
    columns = {
        "step": step,
        "prompt_id": pl.col("id") if "id" in types else fingerprint(prompt),
        "prompt": prompt,
        "completion": pl.col("responses"),
        "reward": number("scores"),
        "scored": number("scores").is_not_null(),
    }
    own = {"scores": pl.Float64(), "responses": pl.String(), "prompt": pl.String(), "id": pl.String()}
    used = {*own, "global_step"}
    return Layout(
        columns | extras(types, used),
        key=key,
        types={name: dtype for name, dtype in own.items() if name in types},
    )


def _step(path: Path) -> int | None:
    found = re.search(r"step_(\d+)", path.name)
    return int(found[1]) if found else None


FORMAT = Format(
    name="roll",
    framework="ROLL",
    written_by="roll/pipeline/rlvr/utils.py, write_to_json_process (rollout_dump_dir)",
    verified=None,
    missing=("group ids", "advantages", "token counts", "finish reasons", "log-probs", "reward components"),
    files=("rollout_dump_data.step_*.jsonl", "*/rollout_dump_data.step_*.jsonl"),
    recognises=_recognises,
    layout=_layout,
    unpack=_unpack,
    step_in_name=_step,
)
