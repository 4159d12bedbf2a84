"""Any table with a row a completion, its columns named by the caller: JSON lines, Parquet or CSV."""

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
    within_step,
)
from grouprl.records.formats.format import Format, Head, Layout, Options
from grouprl.records.rollouts import rollout_schema

if TYPE_CHECKING:
    import polars as pl

    from grouprl.records.formats.format import Types


def _layout(types: Types, options: Options) -> Layout:
    pl = polars()
    schema = rollout_schema(tokens=True)
    named = _named(types, options)
    weights = options.rewards or {}
    columns = {ours: _column(theirs, types, schema.get(ours, pl.Float64())) for ours, theirs in named.items()}
    if weights:
        columns = {"reward": weighted_sum(weights)} | columns | components(weights)
    if "reward" not in columns:
        raise InputError(
            f"read: table: no column 'reward' among {', '.join(map(repr, types))}, expected one; name it with "
            "columns= (--columns reward=…), or several with rewards= (--rewards)"
        )
    guessed = [
        name for name in types if name.startswith("reward_") and name not in {*named.values(), *weights}
    ]
    columns |= components(guessed) | {"scored": columns["reward"].is_not_null()}
    prompt = columns.get("prompt")
    if "prompt_id" not in columns and prompt is not None:
        columns["prompt_id"] = fingerprint(prompt)
    key = None
    if "group_id" in columns:
        if "step" in columns:
            columns["group_id"] = within_step(columns["step"], columns["group_id"])
    elif prompt is not None or "prompt_id" in columns:
        key = columns["prompt_id"]
    elif options.group_size is not None:
        key = pl.lit("")
    return Layout(
        columns | extras(types, {*named.values(), *weights, *guessed}),
        key=key,
        types={
            theirs: _raw_type(types[theirs], schema.get(ours, pl.Float64())) for ours, theirs in named.items()
        },
    )


def _named(types: Types, options: Options) -> dict[str, str]:
    """grouprl's name → the file's: those that are called so, and those that the caller names."""
    schema = rollout_schema(tokens=True)
    for ours, theirs in options.columns.items():
        if ours not in schema and not ours.startswith("reward_"):
            raise InputError(
                f"read: columns: {ours!r} is no column of grouprl's, expected one of {', '.join(schema)} or "
                "reward_<name>; the file's own name comes second"
            )
        if theirs not in types:
            raise InputError(
                f"read: columns: no column {theirs!r}, expected one of {', '.join(map(repr, types))}; name another"
            )
    return {name: name for name in types if name in schema} | dict(options.columns)


def _column(theirs: str, types: Types, dtype: pl.DataType) -> pl.Expr:
    pl = polars()
    if dtype == pl.String:
        return text(theirs, types)
    return number(theirs) if dtype == pl.Float64 else pl.col(theirs).cast(dtype)


def _raw_type(found: pl.DataType, dtype: pl.DataType) -> pl.DataType:
    """What a column is read as: text as text also where it looks like numbers, numbers and bools as they are."""
    pl = polars()
    if dtype == pl.String:
        return found if found.is_nested() else pl.String()
    return found if found == pl.Boolean and dtype == pl.Float64 else dtype


def _recognises(head: Head) -> bool:
    return head.has("reward")


FORMAT = Format(
    name="table",
    framework="any",
    written_by="columns that the caller names",
    verified="any",
    missing=(),
    files=(),
    recognises=_recognises,
    layout=_layout,
)
