"""Which of a file's prompts are held out: by a hash of their content, so that every run agrees."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence

from grouprl.errors import TaskError
from grouprl.types import Prompt

MAX_HELDOUT = 200
DEFAULT_FRACTION = 0.1


def content_key(prompt: Prompt) -> str:
    """A hash of what the prompt asks, equal where two prompts ask the same in the same words."""
    content = prompt.content if isinstance(prompt.content, str) else [dict(m) for m in prompt.content]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def split_heldout(
    prompts: Sequence[Prompt], fraction: float = DEFAULT_FRACTION
) -> tuple[list[Prompt], list[Prompt]]:
    """Divide prompts into those to train on and those held out.

    Args:
        prompts: All prompts, at least one.
        fraction: The share to hold out, at least 0 and less than 1. Rounded up, but never more than 200
            prompts, and never the last one.

    Returns:
        (train, heldout), each in the order of `prompts`. Prompts of the same content stand on the same side
        (so a few fewer may be held out), and the side depends neither on the prompts' order nor on a seed.

    Raises:
        TaskError: a fraction out of range.

    Example:
        >>> prompts = [Prompt(str(n), f"What is {n} + 1?") for n in range(50)]
        >>> train, heldout = split_heldout(prompts, 0.1)
        >>> len(train), len(heldout)
        (45, 5)
    """
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction < 1:
        raise TaskError(f"heldout_fraction: {fraction!r}, expected a number from 0 up to, but not, 1")
    rounded_up = math.ceil(len(prompts) * fraction - 1e-9)
    target = min(rounded_up, MAX_HELDOUT, len(prompts) - 1)
    by_content: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_content.setdefault(content_key(prompt), []).append(prompt)
    held: set[str] = set()
    count = 0
    for key in sorted(by_content):
        if count + len(by_content[key]) <= target:
            held.add(key)
            count += len(by_content[key])
    heldout_ids = {prompt.prompt_id for key in held for prompt in by_content[key]}
    train = [prompt for prompt in prompts if prompt.prompt_id not in heldout_ids]
    return train, [prompt for prompt in prompts if prompt.prompt_id in heldout_ids]
