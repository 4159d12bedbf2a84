"""What a reward server is told and tells: its URL, what JSON can hold, its rewards, how long it wants to be left."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import unquote, urlsplit

from grouprl.errors import RewardError, TaskError

SCHEMES = ("http://", "https://")
_ENDINGS = (
    *(
        "key",
        "token",
        "secret",
        "secrets",
        "password",
        "passwd",
        "passphrase",
        "pwd",
        "auth",
        "authorization",
    ),
    *("credential", "credentials", "sig", "signature", "jwt", "bearer", "hmac"),
)
_WHOLE_NAMES = ("code", "cred", "creds", "pass", "pin", "session", "sid")
_KEY_LIKE = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:sk|pk|rk|gh[a-z]|github_pat|glpat|hf|xox[a-z])[-_][A-Za-z0-9_-]{16,}"
    r"|AKIA[A-Z0-9]{16}|eyJ[A-Za-z0-9_-]{16,})"
)
"""The keys of well-known services, and JSON web tokens, wherever in a URL they stand."""
_URL = re.compile(r"\s*(?:https?:|(?:[a-z][a-z0-9+.-]*:)?//)", re.IGNORECASE)
MAX_WAIT_S = 60.0
"""Longest pause before another try, whatever Retry-After asks for."""


def read_rewards(content: bytes, count: int, where: str, secret: str = "") -> list[float | None]:
    """The rewards of an answer of status 200. No message repeats the secret.

    Raises:
        RewardError: it is not an object with `count` finite numbers or nulls under "rewards".
    """
    expected = f'expected {{"rewards": [{count} numbers or null]}}'
    try:
        answer = json.loads(content, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        shown = start_of(content, 80, secret)
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


def is_url(spec: str) -> bool:
    """Whether a reward's text names a server, if only nearly: what looks like a URL is never shown as a file's name.

    >>> [is_url(spec) for spec in ("http://h/score", " HTTPS:/h", "ws://h", "rewards.py:score", "a/b.py:c")]
    [True, True, True, False, False]
    """
    return _URL.match(spec) is not None


def start_of(content: bytes, length: int, secret: str) -> str:
    """The first characters of an answer on one line, without the secret: a server may repeat what it was sent.

    >>> start_of(b"Incorrect key:\\n s3cret", 30, "s3cret")
    'Incorrect key: …'
    """
    text = content[: 4 * length + 4096].decode(errors="replace")
    return " ".join(without(secret, text).split())[:length]


def without(secret: str, text: str) -> str:
    """The text with dots in the place of the secret, as it is or as repr writes it."""
    for written in (secret, repr(secret)[1:-1]) if secret else ():
        text = text.replace(written, "…")
    return text


def checked_url(url: str) -> Any:
    """The parts of a URL. No message shows what may be secret in it."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise TaskError(
            "reward: a URL that cannot be read, expected http://host:port/path; correct it"
        ) from None
    recorded = "and the URL is recorded with the run; put a token into an environment variable and name that "
    advice = f"{recorded}(--http-token-env)"
    known = f"{parts.scheme}://" in SCHEMES and parts.hostname
    if parts.username is not None or ("@" in url and not known):
        raise TaskError(f"reward: a URL with an @ in it looks like one with a password, {advice}")
    if parts.fragment:
        raise TaskError(
            f"reward: a URL with a fragment (#…), which no server is sent, {advice}; leave it out"
        )
    for name in re.findall(r"(?:^|[/;?&])([^/;?&=]+)(?==)", unquote(f"{parts.path}?{parts.query}")):
        if _is_secret(name):
            raise TaskError(f"reward: parameter {name!r} of a URL looks like a secret, {advice}")
    if _KEY_LIKE.search(unquote(url)):
        raise TaskError(f"reward: a URL with something that looks like a key, {advice}")
    shown = f"{parts.scheme}://{parts.netloc}{parts.path}"
    if not known or port == 0:
        raise TaskError(f"reward {shown!r}: expected http://host:port/path or https://host/path")
    if not all("!" <= character <= "~" for character in url):
        raise TaskError(f"reward {shown!r}: characters that a URL cannot have; percent-encode them")
    return parts


def _is_secret(name: str) -> bool:
    name = name.lower()
    return name in _WHOLE_NAMES or any(part.endswith(_ENDINGS) for part in re.split(r"[^a-z]+", name))


def jsonable(value: Any) -> Any:
    """What JSON has no form for: NumPy's values as Python's, dates in ISO form."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"of type {type(value).__name__}")
