"""`reasoning-gym:<family>`: procedurally generated problems of the package reasoning-gym, with its own scorers.

The package runs in worker processes (`grouprl.tasks.reasoning_gym_worker` says why). Problems are made there once,
when the task is loaded; what a scorer needs of one stays with it as bytes that only a worker opens.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from grouprl.errors import MissingDependency, TaskError
from grouprl.tasks.mixture import apportion, interleave, parse_mixture
from grouprl.tasks.reasoning_gym_rewards import Answers, FamilyItem
from grouprl.tasks.task import Reward, Task
from grouprl.tasks.worker_pool import Failure, WorkerPool, WorkerStartError
from grouprl.types import Prompt

PREFIX = "reasoning-gym:"
SCRIPT = Path(__file__).with_name("reasoning_gym_worker.py")
MEMORY_LIMIT_BYTES = 4 << 30
MAX_REPLY_BYTES = 1 << 28
"""Of items with all that their scorers need."""

BLOCK = 1_000_000
"""Item i of a family is made with the random seed first + i. Held-out items have those below BLOCK, training items
of seed s those from (s + 1) · BLOCK on: no two of them ever share one, as those of seeds 0 and 1 would otherwise."""

MAX_SEED = 4_000
MAX_ITEMS = 100_000
CHUNK = 64
"""Items are made in data sets of this size. A few families make all at once, or look at the size."""

DRAWS = 10
"""A family that gives fewer different questions than one in so many draws is too small for what is asked."""

ITEMS_A_REQUEST, REQUESTS_A_ROUND = 16, 16
MAKING_TIMEOUT_S = 300.0
"""For the items of one request."""

INSTRUCTIONS = {
    "tag": "Write your final answer, and nothing else, between <answer> and </answer>.",
    "whole": "Reply with only the answer.",
}


@dataclass(frozen=True)
class _Family:
    """A family and how its items are made."""

    name: str
    options: str
    """JSON text."""
    pool: WorkerPool = field(compare=False)

    def request(self, what: str, **more: Any) -> dict[str, Any]:
        return {"ask": what, "family": self.name, "options": self.options, **more}


def reasoning_gym(
    families: str,
    /,
    *,
    size: int = 500,
    heldout: int = 100,
    seed: int = 0,
    answer: Literal["tag", "whole"] = "tag",
    instruction: str | None = None,
    timeout_s: float = 10.0,
    workers: int | None = None,
    **options: Any,
) -> Task:
    """Problems of one or several families of reasoning-gym, which check their answers themselves.

    A completion is right, and its reward 1, where the family scores the answer in it with exactly 1; else its reward
    is 0. Three components are recorded: `right`, that; `score`, what the family gave, between 0 and 1 (several
    families give a little for any answer, some for any text), None where its scorer failed or took too long; and
    `answered`, whether there was an answer to score. `reward_weights = [0, 1, 0]` trains on the score instead.

    Held-out problems depend on the families and their options alone, not on `seed`. No question stands twice, on
    neither side nor across. A problem whose own answer its family does not score with 1 is left out.

    Args:
        families: Names, joined by "+", each with "*weight" where it is not 1: "chain_sum*2+leg_counting". The weights
            divide `size` and `heldout` among them.
        size: Problems to train on.
        heldout: Problems held out.
        seed: Of the problems to train on, 0 to 4,000. It is not the run's seed.
        answer: What the answer is: "tag", the text in the last closed <answer>…</answer>; "whole", all of the
            completion. White space round it does not count.
        instruction: Put below each question; None: one that asks for such an answer; "": none.
        timeout_s: For scoring one answer.
        workers: Processes; None: one for each usable core, at most four.
        **options: Of the family, such as `max_terms`. With several families a table for each, by its name.

    Returns:
        The task. Its prompts are conversations, with fields `family`, `answer` (the family's own; None where it has
        none), and `item`.

    Raises:
        TaskError: an unknown family or option, a value that the family refuses, fewer different problems than asked
            for.
        MissingDependency: reasoning-gym is not installed.
    """
    where = f"task {PREFIX + families!r}"
    _check(where, size, heldout, seed, answer, timeout_s, workers)
    if not isinstance(instruction, str | None):
        raise TaskError(f"{where}: instruction is {instruction!r}, expected text")
    if importlib.util.find_spec("reasoning_gym") is None:
        raise MissingDependency(
            f"{where}: reasoning-gym is not installed; pip install 'grouprl[reasoning-gym]'"
        )
    weights = parse_mixture(families, where=where)
    pool = open_pool(time_limit_s=timeout_s, processes=workers)
    try:
        members = _members(where, weights, options, pool)
        train, held = _all_items(where, members, list(weights.values()), size, heldout, seed)
    except WorkerStartError as error:
        raise TaskError(f"{where}: reasoning-gym cannot be used ({error}); reinstall it") from None
    text = INSTRUCTIONS[answer] if instruction is None else instruction
    answers = Answers(pool, {item.item_id: item for item in [*train, *held]}, whole=answer == "whole")
    return Task(
        name=_name(members),
        train=[_prompt(item, text) for item in train],
        heldout=[_prompt(item, text) for item in held],
        rewards=(
            Reward("right", answers.right),
            Reward("score", answers.score, weight=0.0),
            Reward("answered", answers.answered, weight=0.0),
        ),
    )


def open_pool(*, time_limit_s: float, processes: int | None = None) -> WorkerPool:
    """Workers that make problems and score answers (`reasoning_gym_worker`)."""
    return WorkerPool(
        SCRIPT,
        time_limit_s=time_limit_s,
        memory_limit_bytes=MEMORY_LIMIT_BYTES,
        processes=processes,
        max_reply_bytes=MAX_REPLY_BYTES,
    )


def _members(
    where: str, weights: Mapping[str, Fraction], options: dict[str, Any], pool: WorkerPool
) -> list[_Family]:
    known = _value(where, pool.ask({"ask": "families"}))
    for name in weights:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            raise TaskError(
                f"{where}: no family {name!r} among the {len(known)} of reasoning-gym"
                + (f", did you mean {' or '.join(near)}?" if near else "; its README lists them")
            )
    members = []
    for name, chosen in _options_by_family(where, weights, options).items():
        takes = _value(where, pool.ask({"ask": "options", "family": name}))
        for option in chosen:
            if option not in takes:
                near = difflib.get_close_matches(option, takes, n=1)
                raise TaskError(
                    f"{where}: {name} has no option {option!r}, expected "
                    + (f"one of {', '.join(takes)}" if takes else "none; leave it out")
                    + (f"; did you mean {near[0]!r}?" if near else "")
                )
        member = _Family(name, json.dumps(chosen, sort_keys=True), pool)
        made = pool.ask(member.request("open", seed=0, size=CHUNK), time_limit_s=MAKING_TIMEOUT_S)
        if isinstance(made, Failure):
            given = ", ".join(f"{key} = {value!r}" for key, value in chosen.items()) or "no options"
            defaults = ", ".join(f"{key} = {value}" for key, value in takes.items())
            raise TaskError(
                f"{where}: {name} refuses {given} ({made.reason}), expected values that it takes; its defaults "
                f"are {defaults}"
            )
        members.append(member)
    return members


def _options_by_family(
    where: str, weights: Mapping[str, Fraction], options: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    chosen: dict[str, dict[str, Any]] = {name: {} for name in weights}
    if len(chosen) == 1:
        (only,) = chosen
        table = options.pop(only, {}) if isinstance(options.get(only), Mapping) else {}
        return {only: {**options, **table}}
    for key, value in options.items():
        if key not in chosen:
            near = difflib.get_close_matches(key, [*chosen, *OWN_OPTIONS], n=1)
            raise TaskError(
                f"{where}: no option {key!r}, expected one of {', '.join(OWN_OPTIONS)}, or a table of options "
                f"for {' or '.join(chosen)}{f'; did you mean {near[0]!r}?' if near else ''}"
            )
        if not isinstance(value, Mapping):
            raise TaskError(f"{where}: {key} is {value!r}, expected a table of the family's options")
        chosen[key] = dict(value)
    return chosen


def _all_items(
    where: str, members: list[_Family], weights: list[Fraction], size: int, heldout: int, seed: int
) -> tuple[list[FamilyItem], list[FamilyItem]]:
    train, held = [], []
    counts = zip(members, apportion(size, weights), apportion(heldout, weights), strict=True)
    for member, to_train, to_hold in counts:
        seen: set[str] = set()
        held.append(_items(where, member, "heldout", 0, to_hold, seen))
        train.append(_items(where, member, f"train-{seed}", (seed + 1) * BLOCK, to_train, seen))
    return interleave(train), interleave(held)


def _items(
    where: str, family: _Family, part_name: str, first: int, count: int, seen: set[str]
) -> list[FamilyItem]:
    """`count` items whose questions are not among those seen, to which they are added."""
    items: list[FamilyItem] = []
    drawn, unusable, failure = 0, 0, ""
    while len(items) < count and drawn < DRAWS * (count + CHUNK):
        parts = _parts(drawn, count - len(items))
        replies = family.pool.ask_all(
            [
                family.request(
                    "items", seed=first + chunk * CHUNK, size=CHUNK, first=part.start, count=len(part)
                )
                for chunk, part in parts
            ],
            time_limit_s=MAKING_TIMEOUT_S,
            requests_a_process=2,
        )
        made = [
            item
            for (_, part), reply in zip(parts, replies, strict=True)
            for item in ([{"error": reply.reason}] * len(part) if isinstance(reply, Failure) else reply)
        ]
        for item in made:
            drawn += 1
            if "error" in item or item["score"] not in (None, 1.0):
                unusable += 1
                failure = item.get("error", "its own answer is not scored with 1")
                continue
            question = item["question"].strip()
            if question and question not in seen:
                seen.add(question)
                items.append(
                    FamilyItem(
                        item_id=f"{family.name}/{part_name}/{drawn - 1}",
                        family=family.name,
                        question=question,
                        answer=item["answer"],
                        request=family.request("score", entry=item["entry"]),
                    )
                )
        if unusable == drawn >= CHUNK:
            raise TaskError(f"{where}: {family.name} made no usable item in {drawn} tries ({failure})")
    if len(items) < count:
        more = f" beside {len(seen) - len(items)} held out" if part_name != "heldout" else ""
        raise TaskError(
            f"{where}: {family.name} gave {len(items)} different questions{more} in {drawn:,} tries, expected {count}; "
            "lower size or heldout, or choose options that give more"
        )
    return items


def _parts(drawn: int, missing: int) -> list[tuple[int, range]]:
    """The next indices to draw, as many as are missing: each request's data set, and indices in it."""
    parts: list[tuple[int, range]] = []
    while missing > 0 and len(parts) < REQUESTS_A_ROUND:
        chunk, index = divmod(drawn, CHUNK)
        part = range(index, min(index + ITEMS_A_REQUEST, CHUNK, index + missing))
        parts.append((chunk, part))
        drawn, missing = drawn + len(part), missing - len(part)
    return parts


def _prompt(item: FamilyItem, instruction: str) -> Prompt:
    question = f"{item.question}\n\n{instruction}" if instruction else item.question
    return Prompt(
        prompt_id=item.item_id,
        content=({"role": "user", "content": question},),
        fields={"family": item.family, "answer": item.answer, "item": item.item_id},
    )


def _name(members: list[_Family]) -> str:
    return "+".join(m.name for m in members) if len(members) <= 3 else f"{len(members)}-families"


def _value(where: str, reply: Any) -> Any:
    if isinstance(reply, Failure):
        raise TaskError(f"{where}: reasoning-gym failed ({reply.reason}); reinstall it")
    return reply


OWN_OPTIONS = (
    "size",
    "heldout",
    "seed",
    "answer",
    "instruction",
    "timeout_s",
    "workers",
)


def _check(where: str, size: Any, heldout: Any, seed: Any, answer: Any, timeout_s: Any, workers: Any) -> None:
    wholes = [("size", size, 1, MAX_ITEMS), ("heldout", heldout, 0, MAX_ITEMS), ("seed", seed, 0, MAX_SEED)]
    if workers is not None:
        wholes.append(("workers", workers, 1, 256))
    for name, value, low, high in wholes:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise TaskError(f"{where}: {name} is {value!r}, expected an integer from {low} to {high:,}")
    if answer not in INSTRUCTIONS:
        raise TaskError(f"{where}: answer is {answer!r}, expected 'tag' or 'whole'")
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s <= 3600:
        raise TaskError(f"{where}: timeout_s is {timeout_s!r}, expected seconds above 0, at most 3,600")
