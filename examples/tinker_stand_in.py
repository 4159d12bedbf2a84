"""A local stand-in for the part of the Tinker API that tinker_loop.py calls. It really samples and really trains.

It is not the service, and was written from the public documentation of its API: names and shapes are the same, the
numbers are those of the whole model's weights on this machine (the service trains a LoRA adapter), and every call is
done when it returns. The loss is the documented one of "importance_sampling":

    loss = −Σ_t exp(log π_t − log π_sampler,t) · A_t          summed over all tokens of all datums
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from plain_loop import logprobs_of, sample
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

types = sys.modules[__name__]
T = TypeVar("T")


@dataclass(frozen=True)
class Future(Generic[T]):
    """What a call gives: done already."""

    value: T

    def result(self) -> T:
        return self.value


@dataclass(frozen=True)
class ModelInput:
    tokens: list[int]

    @classmethod
    def from_ints(cls, tokens: list[int]) -> ModelInput:
        return cls(list(tokens))


@dataclass(frozen=True)
class TensorData:
    data: Tensor

    @classmethod
    def from_torch(cls, tensor: Tensor) -> TensorData:
        return cls(tensor)


@dataclass(frozen=True)
class Datum:
    model_input: ModelInput
    loss_fn_inputs: dict[str, TensorData]


@dataclass(frozen=True)
class SamplingParams:
    max_tokens: int
    temperature: float = 1.0


@dataclass(frozen=True)
class AdamParams:
    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12


@dataclass(frozen=True)
class SampledSequence:
    tokens: list[int]
    logprobs: list[float]


@dataclass(frozen=True)
class SampleResponse:
    sequences: list[SampledSequence]


class SamplingClient:
    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model, self._tokenizer = model, tokenizer

    def sample(
        self, *, prompt: ModelInput, num_samples: int, sampling_params: SamplingParams
    ) -> Future[SampleResponse]:
        if sampling_params.temperature != 1.0:
            raise ValueError(f"temperature is {sampling_params.temperature}, expected 1 of this stand-in")
        text = self._tokenizer.decode(prompt.tokens)
        ids, attention, mask = sample(
            self._model, self._tokenizer, [text] * num_samples, sampling_params.max_tokens
        )
        with torch.no_grad():
            logprobs = logprobs_of(self._model, ids, attention, mask.shape[1])
        completions = ids[:, -mask.shape[1] :]
        return Future(
            SampleResponse(
                [
                    SampledSequence(row[m].tolist(), p[m].tolist())
                    for row, p, m in zip(completions, logprobs, mask, strict=True)
                ]
            )
        )


class TrainingClient:
    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._optimizer = torch.optim.Adam(model.parameters())

    def get_tokenizer(self) -> Any:
        return self._tokenizer

    def save_weights_and_get_sampling_client(self, name: str) -> SamplingClient:
        return SamplingClient(self._model, self._tokenizer)  # the same weights, in the same process

    def forward_backward(self, data: list[Datum], loss_fn: str) -> Future[dict[str, float]]:
        if loss_fn != "importance_sampling":
            raise ValueError(f"loss_fn is {loss_fn!r}, expected 'importance_sampling' of this stand-in")
        total = 0.0
        for datum in data:
            given = {name: tensor.data for name, tensor in datum.loss_fn_inputs.items()}
            ids = torch.tensor([[*datum.model_input.tokens, int(given["target_tokens"][-1])]])
            logprobs = logprobs_of(self._model, ids, torch.ones_like(ids).bool(), ids.shape[1] - 1)[0]
            loss = -((logprobs - given["logprobs"]).exp() * given["advantages"]).sum()
            loss.backward()
            total += loss.item()
        return Future({"loss:sum": total})

    def optim_step(self, adam_params: AdamParams) -> Future[None]:
        for group in self._optimizer.param_groups:
            group["lr"], group["eps"] = adam_params.learning_rate, adam_params.eps
            group["betas"] = (adam_params.beta1, adam_params.beta2)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return Future(None)


class ServiceClient:
    def create_lora_training_client(self, *, base_model: str, rank: int) -> TrainingClient:
        """The whole model is trained here, whatever the rank."""
        tokenizer = AutoTokenizer.from_pretrained(base_model)
        return TrainingClient(
            AutoModelForCausalLM.from_pretrained(base_model, dtype=torch.float32), tokenizer
        )
