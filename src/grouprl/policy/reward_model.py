"""A reward model in this process: a transformers sequence classifier with one label, on prompt and completion."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from grouprl.errors import ModelError
from grouprl.policy.loading import _device, _one_line, check_place
from grouprl.policy.quiet import quiet_transformers
from grouprl.tasks.reward_specs import MODEL_PREFIX
from grouprl.types import Message, Prompt

BATCH_TOKENS = 16_384


class RewardModel:
    """A reward function: the one logit of a sequence classifier for each (prompt, completion).

    What the model reads is the conversation with the completion as the assistant's turn, by the tokenizer's chat
    template; a prompt of plain text is the user's turn. Without a template it is the pair (prompt, completion), as
    the tokenizer joins two texts. A sequence beyond the model's context is unscored (None): a cut one would be scored
    for what it does not say.

    Args:
        model: `AutoModelForSequenceClassification` with `num_labels` 1. It is put into eval mode, and gets no gradient.
        tokenizer: Its tokenizer.
        name: For messages, and the reward's name.
        batch_tokens: Most tokens in a forward, padding included. Sequences of like length stand together.
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, name: str = "model", batch_tokens: int = BATCH_TOKENS
    ) -> None:
        _check_labels(f"reward model {name!r}", model)
        self.model = model.eval().requires_grad_(False)
        self.tokenizer, self.name, self.batch_tokens = tokenizer, name, batch_tokens

    def check_prompts(self, prompts: Iterable[Prompt]) -> Iterator[tuple[Prompt, str]]:
        """The prompts that the chat template cannot be applied to."""
        for prompt in prompts:
            try:
                self.encode(prompt.content, "x")
            except Exception as error:  # a template raises what it likes
                yield prompt, f"the chat template of the reward model refuses it ({_one_line(error)})"

    def __call__(
        self, completions: Sequence[str], prompts: Sequence[str | Sequence[Message]]
    ) -> list[float | None]:
        """Score the batch: one logit each, None for a sequence that is too long."""
        encoded = [self.encode(prompt, text) for prompt, text in zip(prompts, completions, strict=True)]
        limit = self.max_tokens
        order = sorted(
            (i for i, ids in enumerate(encoded) if limit is None or len(ids["input_ids"]) <= limit),
            key=lambda i: len(encoded[i]["input_ids"]),
        )
        rewards: list[float | None] = [None] * len(encoded)
        while order:
            longest = max(1, len(encoded[order[-1]]["input_ids"]))
            chosen = order[-max(1, self.batch_tokens // longest) :]
            del order[-len(chosen) :]
            for index, reward in zip(
                chosen, self._logits([encoded[i] for i in chosen]).tolist(), strict=True
            ):
                rewards[index] = reward
        return rewards

    @property
    def max_tokens(self) -> int | None:
        """The longest sequence that the model was made for; None where there is no limit."""
        limits = (
            getattr(self.model.config.get_text_config(), "max_position_embeddings", None),
            self.tokenizer.model_max_length,  # a huge number where nobody said
        )
        return min((int(limit) for limit in limits if limit and limit < 1 << 40), default=None)

    def encode(self, prompt: str | Sequence[Message], completion: str) -> dict[str, list[int]]:
        """The tokenizer's rows of one sequence: input_ids, and what else the model takes."""
        tokenizer = self.tokenizer
        if tokenizer.chat_template is None:
            asked = prompt if isinstance(prompt, str) else "\n\n".join(m["content"] for m in prompt)
            return dict(tokenizer(asked, completion, add_special_tokens=True))
        turns = (
            [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
        )
        text = tokenizer.apply_chat_template(
            [*turns, {"role": "assistant", "content": completion}], tokenize=False
        )
        return dict(tokenizer(text, add_special_tokens=False))  # the template wrote those

    @torch.no_grad()
    def _logits(self, rows: list[dict[str, list[int]]]) -> torch.Tensor:
        """(n,) in float32. Padding stands on the right and is masked, so that it changes nothing."""
        config = self.model.config.get_text_config()
        pad, unset = config.pad_token_id, config.pad_token_id is None
        if unset:  # a decoder looks for the last token that is not this one: take one that none of them holds
            used = {token for row in rows for token in row["input_ids"]}
            pad = next(token for token in range(len(used) + 1) if token not in used)
        longest = max(len(row["input_ids"]) for row in rows)
        fill = {"input_ids": pad, "attention_mask": 0, "token_type_ids": 0}
        inputs = {
            key: torch.tensor(
                [row[key] + [fill[key]] * (longest - len(row[key])) for row in rows], device=self.model.device
            )
            for key in fill
            if key in rows[0]
        }
        try:
            if unset:
                config.pad_token_id = pad
            return self.model(**inputs).logits[:, 0].float()
        finally:
            if unset:
                config.pad_token_id = None


def load_reward_model(
    name: str, *, device: str = "auto", dtype: str = "float32", batch_tokens: int = BATCH_TOKENS
) -> RewardModel:
    """Load a reward model with its tokenizer.

    Args:
        name: A folder that `save_pretrained` wrote, or a hub id; also with "model:" before it. Its weights have to be
            safetensors, and no code of its own is run.
        device: "auto" (CUDA where there is one), or any torch device.
        dtype: "float32" or "bfloat16", of the weights and of what is computed with them.
        batch_tokens: See `RewardModel`.

    Raises:
        ModelError: It is not there, is damaged, has no safetensors, has not one label, or lacks weights: a causal LM,
            say, whose head would be random.
        ConfigError: There is no such device here.
    """
    where = f"reward {name!r}" if name.startswith(MODEL_PREFIX) else f"reward model {name!r}"
    name = name.removeprefix(MODEL_PREFIX)
    place = _device(device)
    advice = "give the folder or the hub id of a sequence classifier with one label, saved as safetensors"
    if not name:
        raise ModelError(f"{where}: no name after it; {advice}")
    check_place(where, name, advice=advice)
    from safetensors import SafetensorError
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    with quiet_transformers():
        try:
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
            model, loading = AutoModelForSequenceClassification.from_pretrained(
                name,
                dtype=getattr(torch, dtype),
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
        except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
            raise ModelError(f"{where}: cannot be loaded ({_one_line(error)}); {advice}") from error
    random = sorted(loading["missing_keys"])
    if random:
        raise ModelError(
            f"{where}: its weights lack {', '.join(random[:3])}, which would be random; {advice}"
        )
    _check_labels(where, model)
    return RewardModel(model.to(place), tokenizer, name=_short(name), batch_tokens=batch_tokens)


def _check_labels(where: str, model: Any) -> None:
    labels = model.config.num_labels
    if labels != 1:
        raise ModelError(
            f"{where}: it has {labels} labels, expected 1, the reward; take a model trained as one"
        )


def _short(name: str) -> str:
    """The last part of a folder's path that says which model it is: a run's is runs/<run>/model."""
    if not Path(name).is_dir():
        return name
    parts = Path(os.path.abspath(name)).parts
    return next((part for part in reversed(parts[1:]) if part != "model"), "model")
