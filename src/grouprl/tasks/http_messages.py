"""What a reward server is told and tells: its URL, what JSON can hold, its rewards, how long it wants to be left."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from grouprl.errors import RewardError, TaskError

SCHEMES = ("http://", "https://")
SECRET_WORDS = ("key", "token", "secret", "password", "auth", "sig", "signature")
MAX_WAIT_S = 60.0
"""Longest pause before another try, whatever Retry-After asks for."""


def read_rewards(content: bytes, count: int, where: str) -> list[float | None]:
    """The rewards of an answer of status 200.

    Raises:
        RewardError: it is not an object with `count` finite numbers or nulls under "rewards".
    """
    expected = f'expected {{"rewards": [{count} numbers or null]}}'
    try:
        answer = json.loads(content, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        shown = " ".join(content[:80].decode(errors="replace").split())
        raise RewardError(f"{where}: the answer is not JSON ({error}): {shown!r}, {expected}") from None
    rewards = answer.get("rewards") if isinstance(answer, dict) else None
    if not isinstance(rewards, list):
        raise RewardError(f'{where}: the answer has no list "rewards", {expected}')
    if len(rewards) != count:
        raise RewardError(f"{where}: {len(rewards)} rewards for {count} completions, {expected}")
    values: list[float | None] = []
    for index, item in enumerate(rewards):
        if item is not None and (isinstance(item, bool) or not isinstance(item, int | float)):
            raise RewardError(f"{where}: rewards[{index}] is of type {type(item).__name__}, {expected}")
        try:
            value = None if item is None else float(item)
        except OverflowError:
            value = math.inf
        if value is not None and not math.isfinite(value):
            raise RewardError(f"{where}: rewards[{index}] is beyond any float, {expected}")
        values.append(value)
    return values


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def retry_after_s(value: str | None) -> float | None:
    """Seconds to wait, from a number of them or a date."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except ValueError:
            return None
        seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - datetime.now(
            UTC
        ).timestamp()
    return min(max(seconds, 0.0), MAX_WAIT_S) if math.isfinite(seconds) else None


def checked_url(url: str) -> Any:
    """The parts of a URL. No message shows what may be secret in it."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise TaskError(
            "reward: a URL that cannot be read, expected http://host:port/path; correct it"
        ) from None
    if parts.username is not None or parts.password is not None:
        raise TaskError(
            f"reward {parts.scheme}://…@{parts.hostname}: credentials in the URL, which is recorded with the run; put "
            "a token into an environment variable and name that (--http-token-env)"
        )
    shown = f"{parts.scheme}://{parts.netloc}{parts.path}"
    if f"{parts.scheme}://" not in SCHEMES or not parts.hostname or port == 0:
        raise TaskError(f"reward {shown!r}: expected http://host:port/path or https://host/path")
    if not all("!" <= character <= "~" for character in shown + parts.query):
        raise TaskError(f"reward {shown!r}: characters that a URL cannot have; percent-encode them")
    for name, _ in parse_qsl(parts.query, keep_blank_values=True):
        if any(part.endswith(SECRET_WORDS) for part in re.split(r"[^a-z]", name.lower())):
            raise TaskError(
                f"reward {shown}: parameter {name!r} looks like a secret, and the URL is recorded with the run; put a "
                "token into an environment variable and name that (--http-token-env)"
            )
    return parts


def jsonable(value: Any) -> Any:
    """What JSON has no form for: NumPy's values as Python's, dates in ISO form."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"of type {type(value).__name__}")
