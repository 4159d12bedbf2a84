"""vLLM in the trainer's own process, on its device: `vllm.LLM`, imported only where it is asked for."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, Unpack

import torch

from grouprl.errors import MissingDependency, RolloutError
from grouprl.policy import EncodedPrompt, Policy
from grouprl.rollout.engine import Draw
from grouprl.rollout.vllm_options import VllmOptions, check_started, with_defaults
from grouprl.rollout.vllm_requests import Request, Sampled, sample_groups
from grouprl.rollout.vllm_weights import FileHandOver, HandOver, TensorHandOver
from grouprl.types import Group


class VllmEngine:
    """An engine within this process. Its weights are those of the last `take_weights`, which comes before the first
    `generate`.

    vLLM takes hold of the process that it runs in: on a CPU it binds threads to cores and takes
    `torch.set_num_threads` away, and it seeds torch's generators once.

    Args:
        policy: What is trained; its tokenizer and stop tokens are used.
        options: What vLLM is started with; whether that is on a CPU it says itself.

    Raises:
        MissingDependency: vLLM is not installed.
        RolloutError: It does not start.
    """

    def __init__(self, policy: Policy, options: VllmOptions) -> None:
        check_vllm()
        os.environ.update(with_defaults(os.environ, VLLM_LOGGING_LEVEL="ERROR"))
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # else the model lives in another process
        self._policy, self._dtype = policy, getattr(torch, options.dtype)
        self._llm: Any = _start(options)
        config = self._llm.llm_engine.vllm_config
        check_started(
            "vllm",
            options,
            logprobs_mode=config.model_config.logprobs_mode,
            dtype=config.model_config.dtype,
            backend=config.weight_transfer_config and config.weight_transfer_config.backend,
            max_model_len=config.model_config.max_model_len,
            device=config.device_config.device,
            chunked_prefill=config.scheduler_config.enable_chunked_prefill,
            advice="take that out of vllm_args",
        )
        workers = config.parallel_config.world_size
        self._client = _Within(self._llm)
        self._hand_over: HandOver = TensorHandOver() if workers == 1 else FileHandOver()
        self._hand_over.open(self._client, policy, self._dtype)

    def generate(
        self, prompts: Sequence[EncodedPrompt], *, earlier: Sequence[EncodedPrompt] = (), **draw: Unpack[Draw]
    ) -> list[Group]:
        """See `Engine.generate`.

        Raises:
            RolloutError: vLLM failed.
        """
        return sample_groups(self._policy, prompts, self._sample, earlier=earlier, **draw)

    def take_weights(self, policy: Policy) -> None:
        """See `Engine.take_weights`.

        Raises:
            RolloutError: vLLM refused them.
        """
        try:
            self._hand_over.send(self._client, policy, self._dtype)
            self._client.reset_prefix_cache()
        except Exception as error:
            raise RolloutError(f"vllm: it did not take the weights ({_one_line(error)})") from error

    def close(self) -> None:
        """See `Engine.close`."""
        if self._llm is not None:
            self._hand_over.close()
            self._llm.llm_engine.engine_core.shutdown()
            self._llm = self._client.llm = None

    def _sample(self, requests: Sequence[Request], report: Callable[[int], None]) -> list[list[Sampled]]:
        from vllm import SamplingParams

        parameters = [SamplingParams(**r.parameters, detokenize=bool(r.parameters["stop"])) for r in requests]
        asked = [{"prompt_token_ids": list(r.token_ids)} for r in requests]
        done: dict[int, list[Sampled]] = {}
        try:
            ids = self._llm.enqueue(asked, parameters, use_tqdm=False)
            try:
                while self._llm.llm_engine.has_unfinished_requests():
                    for output in self._llm.llm_engine.step():
                        if output.finished:
                            done[int(output.request_id)] = [_sampled(c) for c in output.outputs]
                    report(len(done))
            except BaseException:  # an interrupt, or work that was given up
                with suppress(Exception):
                    self._llm.llm_engine.abort_request(ids, internal=True)
                raise
        except Exception as error:
            raise RolloutError(f"vllm: it failed while it sampled ({_one_line(error)})") from error
        return [done[number] for number in sorted(done)]  # numbered as they were asked for


class _Within:
    """The calls of a hand-over, within the process."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.llm.init_weight_transfer_engine({"init_info": init_info})

    def start_weight_update(self) -> None:
        self.llm.start_weight_update()

    def update_weights(self, update_info: Any) -> None:
        self.llm.update_weights({"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.llm.finish_weight_update(weight_version)

    def reset_prefix_cache(self) -> None:
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("its prefix cache is in use")


def check_vllm() -> None:
    """Nothing, where vLLM is installed.

    Raises:
        MissingDependency: It is not.
    """
    if find_spec("vllm") is None:
        raise MissingDependency(
            "rollout.engine = 'vllm': vllm is not installed; see docs/vllm.md, or take engine = 'vllm_server' with "
            "vllm_python, the interpreter of an environment that has it"
        )


def _start(options: VllmOptions) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its imports
            from vllm import LLM, EngineArgs
            from vllm.platforms import current_platform
            from vllm.utils.argparse_utils import FlexibleArgumentParser

            parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
            words = replace(options, cpu=current_platform.is_cpu()).words()
            given = ["--model", options.model, "--no-use-tqdm-on-load", *words]
            return LLM.from_engine_args(EngineArgs.from_cli_args(parser.parse_args(given)))
    except SystemExit as error:  # its parser's
        raise RolloutError(
            f"vllm: it does not take the options {' '.join(options.extra)!r}; correct vllm_args"
        ) from error
    except Exception as error:
        raise RolloutError(f"vllm: it did not start ({_one_line(error)}); see docs/vllm.md") from error


def _sampled(output: Any) -> Sampled:
    tokens = list(output.token_ids)
    return Sampled(tokens, [at[token].logprob for token, at in zip(tokens, output.logprobs, strict=True)])


def _one_line(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return " ".join(text.split())[:300]
