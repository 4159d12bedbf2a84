"""A reward that a server computes: batches of completions are posted to it, as JSON, and numbers come back.

A request, one entry a completion in each list:

    {"version": 1, "completions": ["22"], "prompts": ["7 + 15?"], "finish_reasons": ["stop"],
     "fields": {"answer": [22]}}

A prompt is text, or its list of `{"role", "content"}` messages. The answer to it, of status 200:

    {"rewards": [1.0]}

with one finite number for each completion, in order, or null for one that is not scored.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import random
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from grouprl.errors import RewardError, RewardUnavailable, TaskError
from grouprl.tasks.http_messages import (
    MAX_WAIT_S,
    checked_url,
    jsonable,
    read_rewards,
    retry_after_s,
    start_of,
    without,
)
from grouprl.tasks.task import Reward
from grouprl.types import Prompt

MAX_RESPONSE_BYTES = 16 << 20
BACKOFF_S = 0.5
RETRIED = (408, 425, 429, 500, 502, 503, 504)


def http_reward(url: str, *, weight: float = 1.0, **options: Any) -> Reward:
    """The reward of a server, named by the last part of the URL's path.

    Args:
        url: See `HttpReward`.
        weight: The component's weight.
        **options: Of `HttpReward`.

    Raises:
        TaskError: as `HttpReward`.

    Example:
        >>> http_reward("http://127.0.0.1:8000/score").name
        'score'
    """
    function = HttpReward(url, **options)
    return Reward(function.name, function, weight)


class HttpReward:
    """A reward function that posts completions to a server, in the form at the head of this module.

    What fails and may pass is tried again, after a pause that doubles from half a second, is a random part shorter,
    and is at least what Retry-After asks for: no connection, no whole answer in time, status 408, 425, 429, 500, 502,
    503 or 504. Redirects are not followed, proxies not asked, and an answer of more than 16 MiB is not read.

    Args:
        url: http:// or https://. Credentials do not belong in it: it is recorded with the run.
        timeout_s: For one request, from the connection to the last byte of the answer.
        retries: Further tries after the first.
        batch_size: Most completions in a request.
        concurrency: Most requests at a time.
        token_env: The environment variable whose value is sent as `Authorization: Bearer …`; "" sends none.
        backoff_s: The first pause, seconds.

    Raises:
        TaskError: a URL of another kind or with credentials in it, an option out of range, or a `token_env` that is
            not set.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 60.0,
        retries: int = 4,
        batch_size: int = 64,
        concurrency: int = 4,
        token_env: str = "",
        backoff_s: float = BACKOFF_S,
    ) -> None:
        self._parts = checked_url(url)
        self.shown = f"{self._parts.scheme}://{self._parts.netloc}{self._parts.path}"
        for name, value, low in (
            ("timeout_s", timeout_s, 1e-3),
            ("retries", retries, 0),
            ("batch_size", batch_size, 1),
            ("concurrency", concurrency, 1),
        ):
            if not low <= value < math.inf:
                raise TaskError(f"reward {self.shown}: {name} is {value!r}, expected {low} or more")
        if token_env and not re.fullmatch(r"[A-Za-z_]\w*", token_env, re.ASCII):
            raise TaskError(
                f"reward {self.shown}: token_env is no name of an environment variable, expected one, such as "
                "SCORE_TOKEN; the token itself belongs into that variable"
            )
        self._token = os.environ.get(token_env, "").strip() if token_env else ""
        if token_env and not (self._token and self._token.isascii() and self._token.isprintable()):
            what = "holds no token that a header could carry" if self._token else "is not set"
            raise TaskError(
                f"reward {self.shown}: the environment variable {token_env} {what}, expected the token in it"
            )
        self.timeout_s, self.retries, self.backoff_s = timeout_s, retries, backoff_s
        self.batch_size, self.concurrency = batch_size, concurrency
        self._jitter = random.Random()  # the global numbers are the reward functions' own

    @property
    def name(self) -> str:
        """The last part of the path, or the host."""
        return self._parts.path.rstrip("/").rpartition("/")[2] or str(self._parts.hostname)

    def check_prompts(self, prompts: Iterable[Prompt]) -> Iterator[tuple[Prompt, str]]:
        """The prompts with a field that JSON cannot hold."""
        for prompt in prompts:
            for name, value in prompt.fields.items():
                try:
                    json.dumps(value, allow_nan=False, default=jsonable)
                except (TypeError, ValueError) as error:
                    yield prompt, f"field {name!r} cannot be sent as JSON ({error})"
                    break

    def __call__(
        self,
        completions: Sequence[str],
        prompts: Sequence[Any],
        finish_reasons: Sequence[str],
        completion_ids: Any = None,
        **fields: Sequence[Any],
    ) -> list[float | None]:
        """Score the batch.

        Raises:
            RewardUnavailable: the server was not there, or answered no request of some part, at the last try.
            RewardError: it answered with something else than what it should; another try would not mend that.
        """
        bodies = []
        for start in range(0, len(completions), self.batch_size):
            rows = slice(start, start + self.batch_size)
            request: dict[str, Any] = {
                "version": 1,
                "completions": list(completions[rows]),
                "prompts": list(prompts[rows]),
                "finish_reasons": list(finish_reasons[rows]),
                "fields": {name: list(column[rows]) for name, column in fields.items()},
            }
            body = json.dumps(request, allow_nan=False, default=jsonable).encode()
            bodies.append((body, len(request["completions"])))
        stop = _Stop()
        threads = ThreadPoolExecutor(min(self.concurrency, len(bodies) or 1))
        try:
            futures = [threads.submit(self._rewards, body, count, stop) for body, count in bodies]
            results = [future.result() for future in futures]
        except BaseException:  # Ctrl-C, or an answer that no other would make good
            stop.now()
            raise
        finally:
            threads.shutdown(cancel_futures=True)
        rewards: list[float | None] = []
        problem, failed = "", 0
        for result, (_, count) in zip(results, bodies, strict=True):
            if isinstance(result, str):
                problem, failed = problem or result, failed + count
            rewards += [None] * count if isinstance(result, str) else result
        if failed:
            raise RewardUnavailable(problem, scores=rewards, failed=failed)
        return rewards

    def _rewards(self, body: bytes, count: int, stop: _Stop) -> list[float | None] | str:
        """One request, with its tries: its rewards, or why there are none."""
        for attempt in range(self.retries + 1):
            asked_s = None
            try:
                status, headers, content = self._post(body, stop)
            except (OSError, http.client.HTTPException) as error:
                problem = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            else:
                if status == 200:
                    return read_rewards(content, count, f"reward {self.shown}", self._token)
                if status not in RETRIED:
                    raise RewardError(self._refusal(status, content))
                problem = f"status {status}"
                asked_s = retry_after_s(headers.get("Retry-After"))
            if attempt == self.retries or stop.event.wait(self._pause(attempt, asked_s)):
                break
        problem = " ".join(without(self._token, problem).split())[:200]
        return (
            f"reward {self.shown}: no answer in {attempt + 1} tries (the last: {problem}), expected one of status 200; "
            "see that the server runs, or let the completions go unscored (--on-reward-error abstain)"
        )

    def _pause(self, attempt: int, asked_s: float | None) -> float:
        pause = min(self.backoff_s * 2.0**attempt, MAX_WAIT_S) * self._jitter.uniform(0.5, 1.0)
        return min(max(pause, asked_s or 0.0), MAX_WAIT_S)

    def _post(self, body: bytes, stop: _Stop) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Status, headers and content. Whatever the server does, it ends within timeout_s."""
        deadline = time.monotonic() + self.timeout_s
        connection = self._connection()
        try:
            connection.connect()
            connection.sock.settimeout(2 * self.timeout_s)  # the deadline comes first
            with stop.open(connection.sock, deadline) as late:
                try:
                    connection.request("POST", self._target(), body=body, headers=self._headers())
                    response = connection.getresponse()
                    content = response.read(MAX_RESPONSE_BYTES + 1)
                    if response.length and len(content) <= MAX_RESPONSE_BYTES:
                        raise http.client.IncompleteRead(content, response.length)  # read(n) does not say so
                except (OSError, http.client.HTTPException) as error:
                    if late.is_set():
                        raise TimeoutError(f"no whole answer in {self.timeout_s:g} s") from error
                    raise
            if late.is_set():
                raise TimeoutError(f"no whole answer in {self.timeout_s:g} s")
            if len(content) > MAX_RESPONSE_BYTES:
                raise RewardError(
                    f"reward {self.shown}: an answer of more than {MAX_RESPONSE_BYTES:,} bytes, expected a number for "
                    "each completion"
                )
            return response.status, response.headers, content
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        host, port = str(self._parts.hostname), self._parts.port
        if self._parts.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=self.timeout_s, context=context)
        return http.client.HTTPConnection(host, port, timeout=self.timeout_s)

    def _target(self) -> str:
        query = f"?{self._parts.query}" if self._parts.query else ""
        return f"{self._parts.path or '/'}{query}"

    def _headers(self) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json",
            "User-Agent": "grouprl",
            "Connection": "close",
        }
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def _refusal(self, status: int, content: bytes) -> str:
        start = f"reward {self.shown}: status {status}"
        if 300 <= status < 400:
            return f"{start}, expected 200; redirects are not followed, give the URL that it leads to"
        if status in (401, 403):
            return f"{start}, expected 200; name the variable that holds the token (--http-token-env)"
        said = start_of(content, 200, self._token)
        return f"{start} ({said!r}), expected 200; see docs/tasks.md for what is posted"


class _Stop:
    """What ends the requests of a call: each at its deadline, and all of them at once."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self._open: set[socket.socket] = set()

    @contextmanager
    def open(self, sock: socket.socket, deadline: float) -> Iterator[threading.Event]:
        """Shut the socket at the deadline, which wakes whoever reads or writes; the event tells that it came."""
        late = threading.Event()

        def end() -> None:
            late.set()
            _shut(sock)

        timer = threading.Timer(max(0.0, deadline - time.monotonic()), end)
        timer.daemon = True
        timer.start()
        self._open.add(sock)
        try:
            if self.event.is_set():
                _shut(sock)
            yield late
        finally:
            self._open.discard(sock)
            timer.cancel()

    def now(self) -> None:
        """End all pauses and requests."""
        self.event.set()
        for sock in list(self._open):
            _shut(sock)


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
