"""Attention for groups that share their prompt, behind transformers' attention interface: no model is edited.

Completion tokens attend to their prompt and, causally, to their own completion. That is two attentions over disjoint
keys: all the completions' queries against the prompt's keys, and each completion against itself. Neither copies a
prompt's keys for its completions, nor looks at what no token may see. Each gives its result and the logarithm of
its normaliser, and the softmax over all keys follows from both:

    out = Σ_i exp(l_i − l) · out_i        l = log Σ_i exp(l_i)

The backward pass of a part needs only the final out and l (as in ring attention, https://arxiv.org/abs/2310.01889).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

NAME = "grouprl"
"""The attention's name in transformers' registry."""

_flash: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_flash_backward: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)


class UnsupportedAttentionError(RuntimeError):
    """A layer asks for something that rows with a shared prompt do not have."""


class Layout(Protocol):
    """Which tokens of a forward see which."""

    @property
    def longest(self) -> int:
        """No token sees more positions than this."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """(batch, heads, tokens, width) each → (batch, tokens, heads, width)."""


def register() -> str:
    """Make the attention known to transformers, and say its name. Without a layout it is transformers' own."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    layout: Layout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    if layout is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    for name in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(name) is not None:
            raise UnsupportedAttentionError(f"its attention has {name}")
    window = kwargs.get("sliding_window")
    if window is not None and layout.longest > window:
        raise UnsupportedAttentionError(
            f"a sequence of {layout.longest} tokens exceeds its window of {window}"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    # Under autocast the rotation leaves queries and keys in float32.
    query, key = query.to(value.dtype), key.to(value.dtype)
    return layout.attend(getattr(module, "layer_idx", 0), query, key, value, scale), None


@dataclass(frozen=True, slots=True)
class Packing:
    """Rows `[prompt | c1 | … | cG]` one after the other in one sequence, without padding.

    Args:
        rows: Of each row where its prompt starts, where its completions start, where they end, and how many of
            them have a token in the sequence.
        table: The completion token in each slot of a (completions, width) table; their number where there is none.
        slots: Each completion token's slot in that table.
        width: Tokens of the longest completion in the sequence.
        longest: Positions of the longest prompt with its longest completion.
    """

    rows: tuple[tuple[int, int, int, int], ...]
    table: Int[Tensor, " slots"]
    slots: Int[Tensor, " tokens"]
    width: int
    longest: int

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        if q.device.type == "cpu" and _flash is not None and q.shape[-1] == v.shape[-1]:
            return _PackedAttention.apply(q, k, v, self, scale)
        return packed_attention(q, k, v, self, scale)

    def completions(
        self, x: Float[Tensor, "1 heads sequence *width"]
    ) -> Float[Tensor, "1 heads tokens *width"]:
        """The completions' tokens."""
        return torch.cat([x[:, :, middle:end] for _, middle, end, _ in self.rows], dim=2)

    def tabulate(
        self, x: Float[Tensor, "1 heads tokens *width"]
    ) -> Float[Tensor, "completions heads width *width"]:
        """A completion a row, filled up with zeros."""
        flat = x[0].transpose(0, 1)
        flat = torch.cat([flat, flat.new_zeros(1, *flat.shape[1:])]).index_select(0, self.table)
        return flat.unflatten(0, (-1, self.width)).transpose(1, 2)

    def sequence(
        self, x: Float[Tensor, "completions heads width *width"]
    ) -> Float[Tensor, "1 heads tokens *width"]:
        """The way back: completions' tokens one after the other."""
        return x.transpose(1, 2).flatten(0, 1).index_select(0, self.slots).transpose(0, 1)[None]

    def join(self, prompts: Sequence[Tensor], completions: Tensor) -> Tensor:
        """The whole sequence from each row's prompt and all completions' tokens, on axis 2; in memory token by
        token, as the projection behind it reads them."""
        parts, done = [], 0
        for prompt, (_, middle, end, _) in zip(prompts, self.rows, strict=True):
            parts += [prompt, completions[:, :, done : done + end - middle]]
            done += end - middle
        return torch.cat([part.transpose(1, 2) for part in parts], dim=1).transpose(1, 2)


def pack(rows: Sequence[tuple[int, Sequence[int]]], device: torch.device | str = "cpu") -> Packing:
    """A packing from each row's prompt length and its completions' lengths, in tokens of the sequence."""
    width = max((n for _, lengths in rows for n in lengths), default=0)
    bounds: list[tuple[int, int, int, int]] = []
    table: list[int] = []
    slots: list[int] = []
    end = token = 0
    total = sum(n for _, lengths in rows for n in lengths)
    for prompt, lengths in rows:
        kept = [n for n in lengths if n > 0]
        start, middle, end = end, end + prompt, end + prompt + sum(kept)
        bounds.append((start, middle, end, len(kept)))
        for n in kept:
            slots += range(len(table), len(table) + n)
            table += [*range(token, token + n), *[total] * (width - n)]
            token += n
    return Packing(
        rows=tuple(bounds),
        table=torch.tensor(table, dtype=torch.long, device=device),
        slots=torch.tensor(slots, dtype=torch.long, device=device),
        width=width,
        longest=max((prompt + max(lengths, default=0) for prompt, lengths in rows), default=0),
    )


def packed_attention(
    q: Float[Tensor, "1 heads sequence width"],
    k: Float[Tensor, "1 kv_heads sequence width"],
    v: Float[Tensor, "1 kv_heads sequence value_width"],
    packing: Packing,
    scale: float,
) -> Float[Tensor, "1 sequence heads value_width"]:
    """The same through torch's public attention, on any device: it copies each prompt's keys for its completions."""
    gqa = q.shape[1] != k.shape[1]
    own = [_Tabulate.apply(packing.completions(x), packing) for x in (q, k, v)] if packing.width else []
    prompts, completions = [], []
    first = 0
    for start, middle, _, n in packing.rows:
        first_q, first_k, first_v = prompt = [x[:, :, start:middle] for x in (q, k, v)]
        prompts.append(
            scaled_dot_product_attention(
                first_q, first_k, first_v, is_causal=True, scale=scale, enable_gqa=gqa
            )
        )
        if n:
            queries, keys, values = (x[first : first + n] for x in own)
            keys, values = (
                torch.cat([p.expand(n, -1, -1, -1), x], dim=2) for p, x in zip(prompt[1:], (keys, values))
            )
            mask = torch.ones(packing.width, keys.shape[2], dtype=torch.bool, device=q.device)
            mask = mask.tril(middle - start)
            completions.append(
                scaled_dot_product_attention(
                    queries, keys, values, attn_mask=mask, scale=scale, enable_gqa=gqa
                )
            )
            first += n
    tail = _Sequence.apply(torch.cat(completions), packing) if completions else prompts[0][:, :, :0]
    return packing.join(prompts, tail).transpose(1, 2)


class _Tabulate(torch.autograd.Function):
    """`Packing.tabulate`; backward takes each token from its slot, where autograd would add up from all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packing: Packing) -> Tensor:
        ctx.packing = packing
        return packing.tabulate(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.packing.sequence(grad), None


class _Sequence(torch.autograd.Function):
    """`Packing.sequence`, likewise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packing: Packing) -> Tensor:
        ctx.packing = packing
        return packing.sequence(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.packing.tabulate(grad), None


class _PackedAttention(torch.autograd.Function):
    """The attention of a packing through the CPU's flash kernel, which says its normaliser."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, packing: Packing, scale: float) -> Tensor:
        prompts, prompt_lse, seen, seen_lse = [], [], [], []
        for start, middle, end, n in packing.rows:
            keys, values = k[:, :, start:middle], v[:, :, start:middle]
            out, lse = _flash(q[:, :, start:middle], keys, values, 0.0, True, scale=scale)
            prompts.append(out)
            prompt_lse.append(lse)
            if n:
                out, lse = _flash(q[:, :, middle:end], keys, values, 0.0, False, scale=scale)
                seen.append(out)
                seen_lse.append(lse)
        if seen:
            own = [packing.tabulate(packing.completions(x)) for x in (q, k, v)]
            own_out, own_lse = (packing.sequence(x) for x in _flash(*own, 0.0, True, scale=scale))
            tail, tail_lse = _merge(torch.cat(seen, dim=2), torch.cat(seen_lse, dim=2), own_out, own_lse)
        else:
            tail, tail_lse = prompts[0][:, :, :0], prompt_lse[0][:, :, :0]
        out, lse = packing.join(prompts, tail), packing.join(prompt_lse, tail_lse)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.packing, ctx.scale = packing, scale
        return out.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        packing, scale, dtype = ctx.packing, ctx.scale, q.dtype
        # The kernel's backward in half precision takes five times as long as in float32, and rounds more.
        q, k, v, out, grad = (x.float() if x.dtype.itemsize < 4 else x for x in (q, k, v, out, grad))
        grad = grad.transpose(1, 2)
        grads = [_like_sequence(x) for x in (q, k, v)]
        for start, middle, end, n in packing.rows:
            keys, values = k[:, :, start:middle], v[:, :, start:middle]
            for first, last, causal in [(start, middle, True), (middle, end, False)][: 1 + (n > 0)]:
                part = [x[:, :, first:last] for x in (out, lse)]
                dq, dk, dv = _flash_backward(
                    grad[:, :, first:last], q[:, :, first:last], keys, values, *part, 0.0, causal, scale=scale
                )
                grads[0][:, :, first:last] = dq
                if causal:
                    grads[1][:, :, start:middle], grads[2][:, :, start:middle] = dk, dv
                else:
                    grads[1][:, :, start:middle] += dk
                    grads[2][:, :, start:middle] += dv
        if packing.width:
            own = [packing.tabulate(packing.completions(x)) for x in (grad, q, k, v, out, lse)]
            for whole, part in zip(grads, _flash_backward(*own, 0.0, True, scale=scale)):
                tokens, done = packing.sequence(part), 0
                for _, middle, end, _ in packing.rows:
                    own_part = tokens[:, :, done : done + end - middle]
                    if whole is grads[0]:
                        whole[:, :, middle:end] += own_part
                    else:
                        whole[:, :, middle:end] = own_part
                    done += end - middle
        return *(x.to(dtype) for x in grads), None, None


def _merge(a: Tensor, lse_a: Tensor, b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two disjoint sets of keys from attention over each; and its normaliser's logarithm."""
    lse = torch.logaddexp(lse_a, lse_b)
    share = (lse_a - lse).exp_()[..., None]
    return torch.lerp(b.to(share.dtype), a.to(share.dtype), share).to(a.dtype), lse


def _like_sequence(x: Float[Tensor, "1 heads sequence width"]) -> Tensor:
    """An empty tensor of this shape, laid out token by token, as the projections before it are."""
    return x.new_empty(1, x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2)
