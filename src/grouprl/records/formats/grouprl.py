"""grouprl's own rollouts, of this version or another: columns it lacks are null, columns it has besides are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grouprl.records.columns import polars
from grouprl.records.formats.format import Format, Head, Layout, Options
from grouprl.records.rollouts import rollout_schema

if TYPE_CHECKING:
    from grouprl.records.formats.format import Types


def _recognises(head: Head) -> bool:
    return head.has("schema_version", "step", "group_id", "sample_index", "reward", "advantage")


def _layout(types: Types, options: Options) -> Layout:
    pl = polars()
    known = rollout_schema(tokens=True)
    columns = {}
    for name in types:
        dtype = known.get(name) or (pl.Float64() if name.startswith("reward_") else None)
        columns[name] = pl.col(name) if dtype is None else pl.col(name).cast(dtype)
    return Layout(columns, types={name: dtype for name, dtype in known.items() if name in types})


FORMAT = Format(
    name="grouprl",
    framework="grouprl",
    written_by="grouprl.records.write_rollouts",
    verified="this version",
    missing=(),
    files=("rollouts/step_*.parquet", "step_*.parquet"),
    recognises=_recognises,
    layout=_layout,
)
