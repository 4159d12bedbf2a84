"""verifiers' and prime-rl's traces: JSON lines, an episode a line, with the traces of its agents.

A row is the trace of an agent that is trained; the messages that a model wrote are its completion.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from grouprl.records.columns import polars
from grouprl.records.formats.expressions import components, extras, fingerprint, number, within_step
from grouprl.records.formats.format import Format, Head, Layout, Options

if TYPE_CHECKING:
    from grouprl.records.formats.format import Types

_SCORE = "reward_"
_TEXTS = ("episode", "group", "prompt_name", "prompt", "completion", "ended", "env", "agent")
_NUMBERS = ("total", "credit", "sampler", "trainer")
_COUNTS = ("at_step", "prompt_length", "completion_length")


def _recognises(head: Head) -> bool:
    return head.kind == "jsonl" and bool(head.records) and isinstance(head.records[0].get("traces"), list)


def _unpack(line: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for trace in line["traces"]:
        agent = trace.get("agent") or {}
        if agent.get("trainable", True):
            yield _episode(line) | {"agent": agent.get("name")} | _trace(trace)


def _episode(line: dict[str, Any]) -> dict[str, Any]:
    task = line.get("task") or {}
    work = (line.get("run") or {}).get("work") or {}
    env = line.get("env")
    return {
        "episode": line.get("id"),
        "group": (line.get("group") or {}).get("id"),
        "env": env.get("id") if isinstance(env, dict) else env,
        "prompt_name": task.get("key") or task.get("hash"),
        "at_step": work.get("step"),
        "work": work.get("type"),
    }


def _trace(trace: dict[str, Any]) -> dict[str, Any]:
    rewards = {name: one for name, one in (trace.get("rewards") or {}).items() if one is not None}
    nodes = trace.get("nodes") or []
    first = next((i for i, node in enumerate(nodes) if node.get("sampled")), len(nodes))
    sampled = [node for node in nodes if node.get("sampled")]
    calls = trace.get("calls") or []
    ids = [len(node.get("token_ids") or []) for node in nodes]
    drawn = [sum(node.get("mask") or []) for node in nodes]
    has_tokens = any(ids)
    return dict(trace.get("metrics") or {}) | {
        "total": sum(one["score"] * one.get("weight", 1.0) for one in rewards.values()) if rewards else None,
        **{f"{_SCORE}{name}": one["score"] for name, one in rewards.items()},
        "prompt": "\n\n".join(_said(node, role=True) for node in nodes[:first]) or None,
        "completion": "\n\n".join(_said(node) for node in sampled) if nodes else None,
        "prompt_length": sum(ids[: first + 1]) - sum(drawn[: first + 1]) if has_tokens else None,
        "completion_length": sum(drawn) if has_tokens else trace.get("num_output_tokens"),
        "credit": next((value for node in sampled for value in node.get("advantages") or []), None),
        "sampler": _mean(sampled, "logprobs"),
        "trainer": _mean(sampled, "trainer_logprobs"),
        "ended": calls[-1].get("finish_reason") if calls else None,
        "ok": trace.get("ok"),
        "is_timeout": trace.get("is_timeout"),
    }


def _said(node: dict[str, Any], *, role: bool = False) -> str:
    message = node.get("message") or {}
    content = message.get("content")
    if isinstance(content, list):
        content = "\n\n".join(part.get("text") or "" for part in content if isinstance(part, dict))
    body = content or ""
    return f"{message.get('role', '')}: {body}" if role else body


def _mean(nodes: list[dict[str, Any]], name: str) -> float | None:
    values = [value for node in nodes for value in node.get(name) or []]
    return sum(values) / len(values) if values else None


def _layout(types: Types, options: Options) -> Layout:
    pl = polars()
    step = pl.col("at_step")
    scores = [name for name in types if name.startswith(_SCORE)]
    columns = {
        "step": step,
        "group_id": within_step(step, pl.coalesce("group", "prompt_name", "episode")),
        "prompt_id": pl.coalesce(pl.col("prompt_name"), fingerprint(pl.col("prompt"))),
        "prompt": pl.col("prompt"),
        "completion": pl.col("completion"),
        "reward": number("total"),
        **components(scores),
        "scored": number("total").is_not_null(),
        "advantage": number("credit"),
        "prompt_tokens": pl.col("prompt_length"),
        "completion_tokens": pl.col("completion_length"),
        "finish_reason": pl.col("ended"),
        "logprob_mean_sampler": number("sampler"),
        "logprob_mean_trainer": number("trainer"),
    }
    own = (
        dict.fromkeys(_TEXTS, pl.String())
        | dict.fromkeys((*_NUMBERS, *scores), pl.Float64())
        | dict.fromkeys(_COUNTS, pl.Int64())
    )
    used = {*own, "group"} - {"episode", "env", "agent"}
    notes: tuple[str, ...] = ()
    if types.get("group", pl.Null()) == pl.Null:
        notes = ("the episodes name no group, as in an evaluation: those of one task count as its group",)
    return Layout(columns | extras(types, used), types=own, notes=notes)


FORMAT = Format(
    name="verifiers",
    framework="verifiers / prime-rl",
    written_by="verifiers.v1.utils.trace_store.write_episode (traces.jsonl)",
    verified=None,
    missing=("the place within the group", "advantages, until a trainer stamps them"),
    files=("traces.jsonl", "*/traces.jsonl", "**/traces.jsonl"),
    recognises=_recognises,
    layout=_layout,
    unpack=_unpack,
)
