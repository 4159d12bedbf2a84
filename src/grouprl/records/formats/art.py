"""ART's trajectories: a zstd Parquet file a step, a row a trajectory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from grouprl.records.columns import polars
from grouprl.records.formats.expressions import extras, fingerprint, number, whole, within_step
from grouprl.records.formats.format import FILE_STEP, Format, Head, Layout, Options

if TYPE_CHECKING:
    import polars as pl

    from grouprl.records.formats.format import Types

_OWN = (
    "group_index",
    "trajectory_index",
    "reward",
    "messages",
    "logs",
    "trajectory_json",
    "group_json",
    "tools",
)


def _recognises(head: Head) -> bool:
    return head.kind == "parquet" and head.has("group_index", "reward", "messages")


def _layout(types: Types, options: Options) -> Layout:
    pl = polars()
    step = pl.col(FILE_STEP)
    prompt = _messages(trainable=False)
    columns = {
        "step": step,
        "group_id": within_step(step, pl.col("group_index")),
        "prompt_id": fingerprint(prompt),
        "prompt": prompt,
        "completion": _messages(trainable=True),
        "reward": number("reward"),
        "scored": number("reward").is_not_null(),
    }
    keep = pl.col("messages").is_not_null() | pl.col("reward").is_not_null()
    if "trajectory_index" in types:  # null in the row that stands for a group of which nothing came back
        columns["sample_index"] = whole("trajectory_index")
        keep = pl.col("trajectory_index").is_not_null()
    return Layout(columns | extras(types, _OWN), keep=keep)


def _messages(*, trainable: bool) -> pl.Expr:
    """Those up to the first that the model wrote, with their roles; or all from there on."""
    pl = polars()
    message = pl.element()
    begun = message.struct.field("trainable").fill_null(False).cast(pl.Int8).cum_max() == 1
    body = message.struct.field("content").fill_null("")
    said = body if trainable else pl.format("{}: {}", message.struct.field("role").fill_null(""), body)
    return pl.col("messages").list.eval(said.filter(begun if trainable else ~begun)).list.join("\n\n")


def _step(path: Path) -> int | None:
    name = path.name.partition(".")[0]
    return int(name) if name.isdecimal() else None


FORMAT = Format(
    name="art",
    framework="ART",
    written_by="art.utils.trajectory_logging.write_trajectory_groups_parquet",
    verified=None,
    missing=("advantages", "token counts", "finish reasons", "log-probs", "trajectories that failed"),
    files=("trajectories/train/*.parquet", "train/[0-9]*.parquet", "[0-9]*.parquet"),
    recognises=_recognises,
    layout=_layout,
    step_in_name=_step,
)
