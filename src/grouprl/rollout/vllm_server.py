"""vLLM behind its HTTP server: one that grouprl starts and ends, or one on this machine that runs already."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import torch

from grouprl.errors import RolloutError
from grouprl.policy import EncodedPrompt, Policy
from grouprl.rollout.engine import Draw
from grouprl.rollout.vllm_http import ServerAway, VllmClient, checked_url
from grouprl.rollout.vllm_options import (
    CPU_WORDS,
    VllmOptions,
    check_started,
    with_defaults,
    without_torchrun,
)
from grouprl.rollout.vllm_process import ServerProcess, serve_command
from grouprl.rollout.vllm_requests import Request, Sampled, sample_groups
from grouprl.rollout.vllm_weights import FileHandOver, HandOver, NcclHandOver
from grouprl.types import Group

CONCURRENCY = 256
"""Most requests at a time, each of a whole group; vLLM makes batches of them."""
REPORT_S = 1.0
"""How often progress is told, where none is made, too: who hears it may want an end."""
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Between tries of a server that does not answer: someone may start it again."""


class VllmServerEngine:
    """An engine behind a server. Its weights are those of the last `take_weights`, which comes before the first
    `generate`.

    A call that fails is tried again. A server that grouprl started and that ended is started once more for it, with
    the weights of the last `take_weights`; another one is waited for, and gets them again where it comes back without.
    What was sampled before is kept: a completion does not depend on when it is drawn.

    Args:
        policy: What is trained; its tokenizer and stop tokens are used.
        options: What the server is started with, and what one that runs already is compared with.
        own_weights: Keep a copy of what was handed over: where it samples while the policy's weights change, so that a
            server that is recovered gets those that it had.
        url: Of a server that runs already; "" starts one.
        allow_remote: Whether the URL may lead off this machine.
        python: The interpreter that starts the server; "" is this one.
        devices: CUDA_VISIBLE_DEVICES of the server; "" leaves it.
        log: Where a started server's output goes.
        timeout_s: For a server to start, and for one request.
        progress: Told (what, seconds, of at most) while it starts.

    Raises:
        RolloutError: It does not start, does not answer, or is not one that can be handed weights.
    """

    def __init__(
        self,
        policy: Policy,
        options: VllmOptions,
        *,
        own_weights: bool = False,
        url: str = "",
        allow_remote: bool = False,
        python: str = "",
        devices: str = "",
        log: Path,
        timeout_s: float = 600.0,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        if url:
            checked_url(url, allow_remote=allow_remote)
        self._options, self._dtype = options, getattr(torch, options.dtype)
        self._policy = policy.copy(self._dtype) if own_weights else policy
        self._own_weights = own_weights
        self._url, self._python, self._devices, self._log = url, python, devices, log
        self._timeout_s, self._progress = timeout_s, progress
        self._process: ServerProcess | None = None
        self._version = ""
        self._client = self._connect()
        try:
            self._check(self._client.server_info())
            self._hand_over = self._make_hand_over()
        except ServerAway as away:
            self.close()
            raise self._failure(str(away)) from away
        except BaseException:
            self.close()
            raise

    def generate(
        self, prompts: Sequence[EncodedPrompt], *, earlier: Sequence[EncodedPrompt] = (), **draw: Unpack[Draw]
    ) -> list[Group]:
        """See `Engine.generate`.

        Raises:
            RolloutError: The server is gone for good, or answered with what is no completion.
        """
        return sample_groups(self._policy, prompts, self._sample, earlier=earlier, **draw)

    def take_weights(self, policy: Policy) -> None:
        """See `Engine.take_weights`.

        Raises:
            RolloutError: The server did not take them, nor when it was started again.
        """
        if self._own_weights:
            self._policy.take_weights(policy)
        else:
            self._policy = policy
        try:
            self._send()
        except ServerAway as away:
            self._recover(str(away))

    def close(self) -> None:
        """See `Engine.close`. A server that grouprl did not start keeps running, with the weights that it has."""
        if hand_over := getattr(self, "_hand_over", None):
            hand_over.close()
        if self._process is not None:
            self._process.stop()
            self._process = None

    # Sampling

    def _sample(self, requests: Sequence[Request], report: Callable[[int], None]) -> list[list[Sampled]]:
        """The completions of each request; the server is recovered once."""
        answers: dict[int, list[Sampled]] = {}
        recovered = False
        while True:
            problem = self._ask(requests, answers, report)
            if problem is None:
                problem = self._lost_weights()
                if problem is None:
                    return [answers[i] for i in range(len(requests))]
                answers.clear()  # sampled with other weights, some of them
            if recovered:
                raise self._failure(problem)
            self._recover(problem)
            recovered = True

    def _ask(
        self, requests: Sequence[Request], answers: dict[int, list[Sampled]], report: Callable[[int], None]
    ) -> str | None:
        """Fill in the answers that are missing; what went wrong where one still is."""
        missing = [i for i in range(len(requests)) if i not in answers]
        if not missing:
            return None
        self._client.pick_up()
        pool = ThreadPoolExecutor(min(CONCURRENCY, len(missing)))
        problem = None
        try:
            waiting: dict[Future[list[Sampled]], int] = {
                pool.submit(self._client.complete, requests[i]): i for i in missing
            }
            while waiting:
                done, _ = wait(waiting, REPORT_S, return_when=FIRST_COMPLETED)
                for future in done:
                    number = waiting.pop(future)
                    try:
                        answers[number] = future.result()
                    except ServerAway as away:
                        problem = problem or str(away)
                report(len(answers))
        except BaseException:  # an interrupt, or an answer that another try would not mend
            self._client.hang_up()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
        return problem

    def _lost_weights(self) -> str | None:
        """Why the answers may be of other weights than those that were handed over; None where they are not."""
        try:
            version = self._client.weight_version()
        except ServerAway as away:
            return str(away)
        return None if version == self._version else "it was started anew, or somebody else gave it weights"

    # Failing and coming back

    def _recover(self, problem: str) -> None:
        """Have a server again, with the weights of the last hand-over. One of ours that does not take them is started
        anew.

        Raises:
            RolloutError: There is none.
        """
        try:
            if self._answers_again():
                try:
                    return self._send_anew()
                except ServerAway as away:
                    problem = f"{problem}; then {away}"
            if self._url:
                raise self._failure(problem)
            self._client = self._connect()
            self._send_anew()
        except ServerAway as away:
            raise self._failure(f"{problem}; then {away}") from away

    def _send_anew(self) -> None:
        """The weights of the last hand-over, whatever became of it."""
        with suppress(ServerAway):  # vLLM begins no update before the last one is finished
            self._client.finish_weight_update()
        self._hand_over.close()
        self._hand_over = self._make_hand_over()
        self._send()

    def _answers_again(self) -> bool:
        """Whether it answers, now or after some pauses. One of ours that ended is not waited for."""
        for pause in PAUSES_S:
            if self._client.healthy():
                return True
            if self._process is not None and not self._process.alive:
                return False
            time.sleep(pause)
        return self._client.healthy()

    def _failure(self, problem: str) -> RolloutError:
        said, log = "", ""
        if self._process is not None:
            if not self._process.alive and (words := self._process.last_words()):
                said = f"; its last words: {words}"
            log = f", see {self._log}"
        return RolloutError(
            f"vllm server {self._client.shown}: no answer that can be used ({problem}{said}), expected completions"
            f"{log or '; see that it runs'}"
        )

    # Starting and handing over

    def _connect(self) -> VllmClient:
        """A client of the server, started here unless there is a URL."""
        if self._url:
            client = VllmClient(self._url, timeout_s=self._timeout_s)
            if not client.healthy():
                raise RolloutError(
                    f"vllm server {client.shown}: no answer, expected one of status 200 to /health; start it, or leave "
                    "vllm_url out and one is started"
                )
            return client
        if self._process is not None:
            self._process.stop()
        environment = with_defaults(without_torchrun(os.environ)) | {"VLLM_SERVER_DEV_MODE": "1"}
        if self._devices:
            environment["CUDA_VISIBLE_DEVICES"] = self._devices
        self._process = ServerProcess(
            lambda socket: serve_command(self._python, self._options.model, self._options.words(), socket),
            log=self._log,
            environment=environment,
            timeout_s=self._timeout_s,
            progress=lambda done, total: self._progress("vllm", done, total) if self._progress else None,
        )
        return VllmClient("http://localhost", unix_socket=self._process.socket, timeout_s=self._timeout_s)

    def _check(self, info: dict[str, object]) -> None:
        """Refuse a server whose answers would not be what they are taken for."""

        def found(part: str, name: str) -> object:
            table = info.get(part)
            return table.get(name) if isinstance(table, dict) else None

        device = found("device_config", "device")
        there = replace(self._options, cpu=str(device) == "cpu")
        advice = "take that out of vllm_args"
        if self._url:
            advice = f"start it with: {_command(there)}"
        elif there.cpu and not self._options.cpu:
            advice = f"add {' '.join(CPU_WORDS)} to vllm_args"
        check_started(
            f"vllm server {self._client.shown}",
            self._options,
            logprobs_mode=found("model_config", "logprobs_mode"),
            dtype=found("model_config", "dtype"),
            backend=found("weight_transfer_config", "backend"),
            max_model_len=found("model_config", "max_model_len"),
            device=device,
            chunked_prefill=found("scheduler_config", "enable_chunked_prefill"),
            advice=advice,
        )

    def _make_hand_over(self) -> HandOver:
        hand_over: HandOver = FileHandOver()
        if self._options.backend == NcclHandOver.backend:
            answer = self._client.call("GET", "/get_world_size")
            hand_over = NcclHandOver(int(answer["world_size"]))
        hand_over.open(self._client, self._policy, self._dtype)
        return hand_over

    def _send(self) -> None:
        """The weights of now, under a new name, and nothing left that was computed with others."""
        self._hand_over.send(self._client, self._policy, self._dtype)
        self._client.reset_prefix_cache()
        version = f"grouprl-{uuid.uuid4().hex}"
        self._client.name_weights(version)
        self._version = version


def _command(options: VllmOptions) -> str:
    """What starts a server with these options, for a shell."""
    words = " ".join(f"'{w}'" if "{" in w else w for w in options.words())
    return f"VLLM_SERVER_DEV_MODE=1 vllm serve {options.model} {words}"
