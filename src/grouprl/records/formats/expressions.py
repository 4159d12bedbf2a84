"""Expressions that several formats share: raw columns → grouprl's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from grouprl.records.columns import polars
from grouprl.records.rollouts import rollout_schema

if TYPE_CHECKING:
    import polars as pl

    Types = Mapping[str, pl.DataType]


def number(name: str) -> pl.Expr:
    """As float64; NaN and infinity, which are no rewards, are null."""
    pl = polars()
    value = pl.col(name).cast(pl.Float64)
    return pl.when(value.is_finite()).then(value)


def whole(name: str) -> pl.Expr:
    pl = polars()
    return pl.col(name).cast(pl.Int64)


def text(name: str, types: Types, *, roles: bool = False) -> pl.Expr:
    """As text: a conversation's messages, with a blank line between them; with their roles where asked for."""
    pl = polars()
    dtype = types.get(name, pl.String())
    if not isinstance(dtype, pl.List):
        return pl.col(name).cast(pl.String)
    message = pl.element().cast(pl.String)
    if isinstance(dtype.inner, pl.Struct):
        fields = {one.name: one.dtype for one in dtype.inner.fields}
        if fields.get("content") == pl.String:
            message = pl.element().struct.field("content").fill_null("")
            if roles and fields.get("role") == pl.String:
                message = pl.format("{}: {}", pl.element().struct.field("role").fill_null(""), message)
        else:
            message = pl.element().struct.json_encode()
    return pl.col(name).list.eval(message).list.join("\n\n")


def fingerprint(value: pl.Expr) -> pl.Expr:
    """A name for equal values, as a prompt_id: 64 bits in hexadecimal, null for null. It is not one for all time."""
    pl = polars()
    return pl.when(value.is_not_null()).then(value.hash(seed=0).cast(pl.String))


def list_fingerprint(name: str) -> pl.Expr:
    """`fingerprint` of a column of token ids."""
    pl = polars()
    return fingerprint(pl.col(name).cast(pl.List(pl.String)).list.join(","))


def mean_of(name: str) -> pl.Expr:
    """Mean of each row's list; null where that is empty."""
    pl = polars()
    return pl.col(name).cast(pl.List(pl.Float64)).list.mean()


def within_step(step: pl.Expr, group: pl.Expr) -> pl.Expr:
    """A group id that is unique within the run, from one that is so within a step."""
    pl = polars()
    prefix = step.cast(pl.String).fill_null("?")
    return pl.concat_str([prefix, pl.lit("/"), group.cast(pl.String)])


def weighted_sum(weights: Mapping[str, float]) -> pl.Expr:
    """Σ wᵢ·rᵢ over the components present; null where there is none."""
    pl = polars()
    values = {name: number(name) for name in weights}
    total = pl.sum_horizontal(value * weights[name] for name, value in values.items())
    return pl.when(pl.any_horizontal(value.is_not_null() for value in values.values())).then(total)


def components(names: Iterable[str]) -> dict[str, pl.Expr]:
    """Each reward's own score, as `reward_<name>`."""
    return {f"reward_{name.removeprefix('reward_')}": number(name) for name in names}


def looks_like_reward(name: str, dtype: pl.DataType) -> bool:
    """Whether an extra column of numbers counts as a reward component: its name says so."""
    pl = polars()
    is_number = dtype.is_numeric() or dtype == pl.Boolean
    return is_number and ("reward" in name.lower() or "score" in name.lower())


def extras(types: Types, used: Collection[str]) -> dict[str, pl.Expr]:
    """All other columns, under their own names; one that has a name of grouprl's own is left out."""
    pl = polars()
    own = rollout_schema(tokens=True)
    return {
        name: pl.col(name)
        for name in types
        if name not in used and name not in own and not name.startswith(("reward_", "\0"))
    }
