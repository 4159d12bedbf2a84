"""The policy: a causal LM with its tokenizer, and what the rest of grouprl asks of it."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from grouprl.errors import ModelError
from grouprl.policy.attention import Layout
from grouprl.policy.head import Head
from grouprl.policy.layers import packed_weights
from grouprl.policy.lora import (
    adapter_off,
    is_adapted,
    merge_adapter,
    merged_packed,
    merged_parameters,
    merged_state,
    save_adapter,
)
from grouprl.policy.quiet import quiet_transformers
from grouprl.policy.rows import Member, Rows, build_rows
from grouprl.policy.sharding import is_sharded, shard_model, whole_state, with_whole_weights
from grouprl.types import Prompt

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt with the text and the tokens that the model sees."""

    prompt: Prompt
    text: str
    token_ids: tuple[int, ...]


class Policy:
    """A causal LM and its tokenizer.

    Dropout is off for good (the model stays in eval mode, which does not stop gradients): with it, the
    log-probs of the sampler and of the trainer would be those of two different policies.

    Args:
        model: A transformers causal LM with a base model and an LM head.
        tokenizer: Its tokenizer.
        name: What the user called it, for messages.
        prefix_obstacle: Why this model cannot train on rows that share a prompt, or None where it can:
            what `policy.probe` found out.
        dtype: What layers compute in. The weights stay what they are: bfloat16 with float32 weights is
            autocast, and the head stays in float32.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str = "model",
        prefix_obstacle: str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name
        self.prefix_obstacle = prefix_obstacle
        self.dtype = dtype
        self.base_only = False

    def in_dtype(self, dtype: torch.dtype) -> Policy:
        """The same weights, computing in another type."""
        other = copy.copy(self)
        other.dtype = dtype
        return other

    def without_adapter(self) -> Policy:
        """The same weights with the adapter off, for forwards without gradient: the model before training."""
        other = copy.copy(self)
        other.base_only = True
        return other

    @property
    def adapted(self) -> bool:
        """Whether the model carries an adapter (`policy.lora`), which alone is trained and saved."""
        return is_adapted(self.model)

    def copy(self, dtype: torch.dtype) -> Policy:
        """A copy with weights of this type, without gradient. Buffers keep theirs: rotary frequencies need it. An
        adapter is added to the weights before they are rounded."""
        model = copy.deepcopy(self.model).requires_grad_(False)
        if self.adapted:
            merge_adapter(model)
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
        return Policy(
            model, self.tokenizer, name=self.name, prefix_obstacle=self.prefix_obstacle, dtype=dtype
        )

    @torch.no_grad()
    def take_weights(self, other: Policy) -> None:
        """Become the other policy, its adapter added to its weights, rounded to the own type."""
        if other.adapted or other.sharded:
            merged = merged_parameters(other.model)
            for mine, (_, theirs) in zip(self.model.parameters(), merged, strict=True):
                mine.copy_(theirs)
            return
        torch._foreach_copy_(list(self.model.parameters()), list(other.model.parameters()))

    @property
    def sharded(self) -> bool:
        """Whether the weights are shared out over ranks (`policy.sharding`): then forwards are collective."""
        return is_sharded(self.model)

    def shard(self) -> None:
        """Share the weights out over the ranks of the default process group. In place, on all ranks, once."""
        shard_model(self.model, self.name)

    def forward(self, act: Callable[[], T]) -> T:
        """`act()`, which runs this policy and gives what backward starts from; see `sharding.with_whole_weights`."""
        return with_whole_weights(self.model, act)

    def whole_state(self, *, keep: bool) -> dict[str, Tensor] | None:
        """What `save` is to write of a sharded policy, in whole tensors, on the rank that is to `keep` it; all ranks
        call it. None where the weights are whole already."""
        return whole_state(self.model, keep=keep, trained_only=self.adapted) if self.sharded else None

    def merged_state(self, *, keep: bool) -> dict[str, Tensor]:
        """What `save` is to write of the whole model with its adapter added to the weights, in whole tensors, on the
        rank that is to `keep` it; of sharded weights all ranks call it."""
        return merged_state(self.model, keep=keep)

    def packed(self, rows: int) -> AbstractContextManager[None]:
        """For many small forwards without gradient: see `layers.packed_weights`, `lora.merged_packed`."""
        if (
            self.adapted and not self.base_only and self.dtype == self.head.weight.dtype
        ):  # else under autocast
            return merged_packed(self.model, rows)
        return packed_weights(self.model, rows)

    def checkpoint_layers(self) -> None:
        """Keep only each layer's input for backward and run the layer again there: less memory, a third more time.

        Raises:
            ModelError: The model does not support it.
        """
        if not getattr(self.model, "supports_gradient_checkpointing", False):
            raise ModelError(
                f"{self.name}: {type(self.model).__name__} does not support gradient checkpointing; "
                "leave it off, and lower micro_batch_tokens to save memory"
            )
        from transformers.modeling_layers import GradientCheckpointingLayer

        self.model.activation_checkpointing_enable(
            {"use_reentrant": False, "preserve_rng_state": False}  # no dropout: nothing is drawn
        )
        for layer in self.model.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                layer.training = True  # of the layer alone: what is in it stays in eval mode

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def config(self) -> Any:
        """The text model's configuration (multi-modal models nest it)."""
        return self.model.config.get_text_config(decoder=True)

    @property
    def vocab_size(self) -> int:
        return len(self.head.weight)

    @property
    def max_context(self) -> int | None:
        """Positions the model was made for, or None where the architecture has no limit."""
        return getattr(self.config, "max_position_embeddings", None)

    @property
    def window(self) -> int | None:
        """Positions that a sliding-window layer sees, or None where there is no such layer."""
        kinds = getattr(self.config, "layer_types", None)
        window = getattr(self.config, "sliding_window", None)
        return window if kinds is None or "sliding_attention" in kinds else None

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Every token that ends a completion: all of the generation config's, and the tokenizer's EOS."""
        ids: set[int] = set()
        for value in (self.model.generation_config.eos_token_id, self.tokenizer.eos_token_id):
            ids.update(value if isinstance(value, list | tuple) else [] if value is None else [value])
        return tuple(sorted(int(i) for i in ids))

    @property
    def pad_id(self) -> int:
        """A token to fill rows with. It is always masked by position, so it may equal EOS."""
        candidates = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
        return int(next(i for i in candidates if i is not None))

    def parameters(self) -> list[nn.Parameter]:
        """The trainable parameters."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def encode(self, text: str) -> tuple[int, ...]:
        """Tokens of a prompt, with exactly one BOS where the tokenizer or the template puts one.

        A template that already begins with BOS gets no second one; a template without it gets the one
        that the tokenizer would have put before plain text.
        """
        ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        bos = self.tokenizer.bos_token_id
        if bos is None:
            return tuple(ids)
        adds_bos = self.tokenizer("a", add_special_tokens=True)["input_ids"][:1] == [bos]
        if adds_bos and ids[:1] != [bos]:
            ids.insert(0, bos)
        return tuple(ids)

    def encode_prompts(
        self, prompts: Iterable[Prompt], *, max_new_tokens: int, template: Mapping[str, Any] | None = None
    ) -> list[EncodedPrompt]:
        """Apply the chat template to conversations, tokenise, and check that everything fits.

        Args:
            prompts: Conversations get the chat template with its generation prompt; plain text does not.
            max_new_tokens: Tokens to leave room for.
            template: Further keywords for the chat template (`enable_thinking`, …).

        Raises:
            ModelError: No chat template for a conversation; an empty prompt; a prompt that does not fit
                the model's context together with `max_new_tokens`.
        """
        encoded = []
        for prompt in prompts:
            text = self._render(prompt, template or {})
            ids = self.encode(text)
            if not ids:
                raise ModelError(
                    f"prompt {prompt.prompt_id!r}: it has no tokens, at least one is needed; give it some text"
                )
            room = self.max_context
            if room is not None and len(ids) + max_new_tokens > room:
                raise ModelError(
                    f"prompt {prompt.prompt_id!r}: {len(ids)} tokens and {max_new_tokens} new ones, but the context "
                    f"of {self.name} is {room}; shorten the prompt or lower max_new_tokens"
                )
            encoded.append(EncodedPrompt(prompt, text, ids))
        return encoded

    def _render(self, prompt: Prompt, template: Mapping[str, Any]) -> str:
        if isinstance(prompt.content, str):
            return prompt.content
        if self.tokenizer.chat_template is None:
            raise ModelError(
                f"prompt {prompt.prompt_id!r} is a conversation, but {self.name} has no chat template; "
                "give prompts as plain text, or use an instruction-tuned model"
            )
        messages = [dict(message) for message in prompt.content]
        try:
            return self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False, **template
            )
        except Exception as error:  # a template raises what it likes: no system message, say
            raise ModelError(
                f"prompt {prompt.prompt_id!r}: the chat template of {self.name} refuses it "
                f"({' '.join(str(error).split())}); change its messages"
            ) from error

    def can_share(self, longest: int) -> bool:
        """Whether completions can share their prompt's tokens in a forward of sequences of at most this length: a
        window of sliding attention must not bite."""
        return self.prefix_obstacle is None and (self.window is None or longest <= self.window)

    def rows(self, batch: Sequence[Sequence[Member]], *, share_prefix: bool) -> Rows:
        """A micro-batch of `plan_micro_batches` as tensors on this model's device."""
        return build_rows(batch, pad_id=self.pad_id, share_prefix=share_prefix, device=self.device)

    def save(self, folder: Path, state: Mapping[str, Tensor] | None = None, *, merged: bool = False) -> None:
        """The model with tokenizer and generation config: `from_pretrained` loads the folder. Of a model with an
        adapter the adapter alone, in peft's form, or with `merged` the whole model, of its `merged_state`. Of a sharded
        one its `whole_state`."""
        with quiet_transformers():
            if self.adapted and not merged:
                save_adapter(self.model, folder, state)
            else:
                self.model.save_pretrained(folder, state_dict=state)
            self.tokenizer.save_pretrained(folder)
        mask = os.umask(0)
        os.umask(mask)
        for path in folder.iterdir():  # safetensors leaves its file to its owner alone
            path.chmod(0o666 & ~mask)

    def hidden_states(
        self,
        input_ids: Int[Tensor, "rows length"],
        *,
        position_ids: Int[Tensor, "rows length"],
        attention_mask: Int[Tensor, "rows keys"] | None = None,
        cache: Any = None,
        layout: Layout | None = None,
    ) -> Float[Tensor, "rows length hidden"]:
        """The last hidden states: everything but the LM head.

        Args:
            input_ids: Tokens.
            position_ids: Their positions.
            attention_mask: 0 where a key is padding; for causal attention.
            cache: Keys and values of earlier tokens, added to.
            layout: Who attends to whom, instead of causal attention; for a model whose attention is ours.
        """
        options: dict[str, Any] = {}
        if layout is not None:
            # A mask of four axes is taken as it is, by every kind of layer; ours does not look at it.
            options["layout"] = layout
            attention_mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=input_ids.device)
        weights = self.head.weight.dtype
        autocast = torch.autocast(
            input_ids.device.type,
            dtype=self.dtype,
            enabled=self.dtype != weights,
            cache_enabled=not self.sharded,  # rounded copies would outlive the weights put together
        )
        with autocast, adapter_off(self.model) if self.base_only else nullcontext():
            output = self.model.base_model(
                input_ids=input_ids,
                position_ids=position_ids,
                attention_mask=attention_mask,
                cache=cache,
                use_cache=cache is not None,
                **options,
            )
        return output.last_hidden_state

    @property
    def head(self) -> Head:
        """What makes logits of hidden states.

        Raises:
            ModelError: It is not a linear layer.
        """
        linear, config = self.model.get_output_embeddings(), self.config
        if not isinstance(linear, nn.Linear):
            raise ModelError(
                f"{self.name}: its head is a {type(linear).__name__}, expected a linear layer; take another model"
            )
        scale = getattr(config, "logit_scale", None) or 1.0
        scale /= getattr(config, "logits_scaling", None) or 1.0
        cap = getattr(config, "final_logit_softcapping", None) or getattr(config, "logits_soft_cap", None)
        return Head(linear.weight, linear.bias, float(scale), cap, getattr(linear, "packed", None))

    def logits(self, hidden: Float[Tensor, "*n hidden"]) -> Float[Tensor, "*n vocab"]:
        """The LM head in float32. See `Head`."""
        return self.head.logits(hidden)
