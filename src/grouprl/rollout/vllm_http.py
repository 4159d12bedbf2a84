"""vLLM's server over HTTP: one call at a time, with the standard library; and what may be called."""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from grouprl.errors import ConfigError, RolloutError
from grouprl.rollout.vllm_requests import Request, Sampled

MAX_ANSWER_BYTES = 1 << 30
MODEL_KEY = "VLLM_API_KEY"
"""The environment variable from which vLLM's server takes its key, and grouprl the same."""


class ServerAway(Exception):  # noqa: N818  (reads better where it is caught)
    """No whole answer, or one that another try may mend."""


class VllmClient:
    """The calls that grouprl makes to vLLM's server. It may be used by several threads.

    Args:
        url: http://host:port; checked by `checked_url`.
        unix_socket: The path of a socket in place of host and port.
        timeout_s: For one call.
    """

    def __init__(self, url: str, *, unix_socket: Path | None = None, timeout_s: float) -> None:
        self._parts = urlsplit(url)
        self._socket_path = unix_socket
        self.shown = str(unix_socket) if unix_socket else f"{self._parts.scheme}://{self._parts.netloc}"
        self.timeout_s = timeout_s
        self._key = os.environ.get(MODEL_KEY, "").strip()
        self._open: set[http.client.HTTPConnection] = set()
        self._hung_up = False
        self._lock = threading.Lock()

    # What is sampled

    def complete(self, request: Request) -> list[Sampled]:
        """The completions of one prompt, in the order of their sample index.

        Raises:
            ServerAway: No answer, or one that another try may mend.
            RolloutError: Any other.
        """
        body = {
            **request.parameters,
            "prompt": list(request.token_ids),
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        return read_completions(self.call("POST", "/v1/completions", body), self.shown)

    # The state of the server

    def healthy(self, timeout_s: float = 5.0) -> bool:
        """Whether it answers, and its engine lives."""
        try:
            self.call("GET", "/health", timeout_s=timeout_s)
        except (ServerAway, RolloutError):
            return False
        return True

    def server_info(self) -> dict[str, Any]:
        """Its configuration, as vLLM writes it."""
        answer = self.call("GET", "/server_info?config_format=json")
        info = answer.get("vllm_config") if isinstance(answer, dict) else None
        if not isinstance(info, dict):
            raise RolloutError(
                f"vllm server {self.shown}: it does not tell its configuration; see docs/vllm.md"
            )
        return info

    def weight_version(self) -> str:
        """What the last hand-over was named."""
        answer = self.call("GET", "/weight_info")
        return str(answer.get("weight_version")) if isinstance(answer, dict) else ""

    # The hand-over of weights (`vllm_weights.WeightClient`)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.call("POST", "/init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        self.call("POST", "/start_weight_update", {})

    def update_weights(self, update_info: Any) -> None:
        self.call("POST", "/update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        named = {} if weight_version is None else {"weight_version": weight_version}
        self.call("POST", "/finish_weight_update", named)

    def name_weights(self, version: str) -> None:
        """Name the weights that it has now."""
        self.call("POST", "/update_weight_version", {"new_version": version})

    def reset_prefix_cache(self) -> None:
        answer = self.call("POST", "/reset_prefix_cache", {})
        if not (isinstance(answer, dict) and answer.get("success")):
            raise ServerAway("its prefix cache is in use")

    # One call

    def call(self, method: str, target: str, body: Any = None, *, timeout_s: float | None = None) -> Any:
        """What it answers, as JSON; None where there is nothing.

        Raises:
            ServerAway: No answer in time, or a status from 500, or 408, 425, 429.
            RolloutError: Any other status than 200, or an answer that is not JSON.
        """
        status, content = self._exchange(method, target, body, timeout_s or self.timeout_s)
        if status >= 500 or status in (408, 425, 429):
            raise ServerAway(f"{method} {target.partition('?')[0]}: status {status}{_said(content)}")
        if status != 200:
            raise RolloutError(
                f"vllm server {self.shown}: {method} {target.partition('?')[0]}: status {status}{_said(content)}, "
                f"expected 200; {_advice(status)}"
            )
        if not content.strip():
            return None
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise RolloutError(
                f"vllm server {self.shown}: {method} {target}: the answer is not JSON ({error}); is it vLLM?"
            ) from None

    def hang_up(self) -> None:
        """End every call that is under way or begins, until `pick_up`: whoever waits for it gets ServerAway, and the
        server drops the request."""
        with self._lock:
            self._hung_up = True
            for connection in self._open:
                if connection.sock is not None:
                    with suppress(OSError):
                        connection.sock.shutdown(socket.SHUT_RDWR)

    def pick_up(self) -> None:
        """Let calls through again."""
        with self._lock:
            self._hung_up = False

    def _exchange(self, method: str, target: str, body: Any, timeout_s: float) -> tuple[int, bytes]:
        connection = self._connection(timeout_s)
        with self._lock:
            self._open.add(connection)
        try:
            connection.connect()
            with self._lock:
                if self._hung_up:
                    raise ConnectionAbortedError("hung up")
            content = None if body is None else json.dumps(body, allow_nan=False).encode()
            connection.request(method, f"{self._parts.path.rstrip('/')}{target}", content, self._headers())
            answer = connection.getresponse()
            said = answer.read(MAX_ANSWER_BYTES)
            if answer.length:
                raise http.client.IncompleteRead(said, answer.length)
            return answer.status, said
        except (OSError, http.client.HTTPException) as error:
            text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise ServerAway(f"{method} {target.partition('?')[0]}: {' '.join(text.split())}") from error
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._socket_path is not None:
            return _UnixConnection(self._socket_path, timeout_s)
        host, port = str(self._parts.hostname), self._parts.port
        if self._parts.scheme == "https":
            return http.client.HTTPSConnection(
                host, port, timeout=timeout_s, context=ssl.create_default_context()
            )
        return http.client.HTTPConnection(host, port, timeout=timeout_s)

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "grouprl"}
        return headers | ({"Authorization": f"Bearer {self._key}"} if self._key else {})


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a socket of the file system, which only its owner can open."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def read_completions(answer: Any, where: str) -> list[Sampled]:
    """Tokens and log-probs out of the answer of /v1/completions.

    Raises:
        RolloutError: It is of another form.
    """
    try:
        choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
        sampled = [
            Sampled(
                [int(token) for token in choice["token_ids"]],
                [float(value) for value in choice["logprobs"]["token_logprobs"]],
            )
            for choice in choices
        ]
        for one, choice in zip(sampled, choices):
            if choice.get("finish_reason") not in ("stop", "length"):
                raise ValueError(f"finish_reason is {choice.get('finish_reason')!r}")
            if len(one.token_ids) != len(one.logprobs):
                raise ValueError(f"{len(one.token_ids)} tokens and {len(one.logprobs)} log-probs")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise RolloutError(
            f"vllm server {where}: its answer to /v1/completions is of another form than expected "
            f"({type(error).__name__}: {' '.join(str(error).split())[:120]}); it should be vLLM 0.32 or near it"
        ) from error
    return sampled


def checked_url(url: str, *, allow_remote: bool) -> SplitResult:
    """The parts of a server's URL.

    Raises:
        ConfigError: It is no http(s)://host:port, holds credentials, or leads off this machine without
            `allow_remote`. No name is looked up: of names, only localhost is taken to be this machine.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError(
            "vllm.vllm_url: it cannot be read, expected http://127.0.0.1:8000; correct it"
        ) from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            f"vllm.vllm_url: it holds credentials, and is recorded with the run; put the key into {MODEL_KEY}"
        )
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or port == 0
        or parts.query
        or parts.fragment
    ):
        raise ConfigError(
            f"vllm.vllm_url is {url!r}, expected http://host:port, such as http://127.0.0.1:8000"
        )
    if not allow_remote and not _is_loopback(parts.hostname):
        raise ConfigError(
            f"vllm.vllm_url is {url!r}, which is not on this machine, expected 127.0.0.1 or localhost; weights and "
            "prompts would go there: set vllm_allow_remote = true if that is meant"
        )
    return parts


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _said(content: bytes) -> str:
    text = " ".join(content[:2000].decode(errors="replace").split())
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        inner = json.loads(content)
        text = str(inner.get("error", inner).get("message", text) if isinstance(inner, dict) else text)
    return f" ({' '.join(text.split())[:200]})" if text else ""


def _advice(status: int) -> str:
    if status in (401, 403):
        return f"put the server's key into {MODEL_KEY}"
    if status == 404:
        return "start it with VLLM_SERVER_DEV_MODE=1, as docs/vllm.md says"
    return "see docs/vllm.md"
