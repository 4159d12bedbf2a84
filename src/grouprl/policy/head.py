"""The LM head: from hidden states to log-probs of chosen tokens, without ever holding all logits.

    z = cap · tanh(scale · (W h + b) / cap) / T        log π(v) = z_v − log Σ_u exp z_u

    H = log Σ_u exp z_u − Σ_u π(u) z_u = −Σ_u π(u) log π(u)

The logits are worked out in chunks and thrown away; backward works them out again. In backward

    ∂ log π(o) / ∂z_v = [v = o] − π(v)        ∂H / ∂z_v = −π(v) (log π(v) + H)

is written over them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from grouprl.policy.matmul import accumulate, product

CHUNK_ELEMENTS = 2**24
"""Most logits that exist at once (64 MiB in float32)."""


@dataclass(frozen=True, slots=True)
class Head:
    """A linear layer, with the scaling and soft cap that some families put behind it.

    Cohere multiplies by `logit_scale`, Granite divides by `logits_scaling`, the Gemmas cap with tanh.
    `policy.probe` compares this with the model's own forward, so a family with a head of another kind is
    refused rather than trained wrongly.

    Args:
        weight: (vocab, hidden).
        bias: (vocab,), or None.
        scale: Factor of the logits.
        cap: Bound of the logits, or None.
        packed: The weight as `packed_weights` packed it, or None.
    """

    weight: Float[Tensor, "vocab hidden"]
    bias: Float[Tensor, " vocab"] | None
    scale: float = 1.0
    cap: float | None = None
    packed: Tensor | None = None

    def logits(
        self, hidden: Float[Tensor, "*n hidden"], temperature: float = 1.0
    ) -> Float[Tensor, "*n vocab"]:
        """Logits over the temperature, in float32. Without gradient."""
        flat = hidden.detach().flatten(0, -2).to(self.weight.dtype)
        bias = None if self.bias is None else self.bias.detach()
        z = product(flat, self.weight.detach() if self.packed is None else self.packed, bias).float()
        if self.scale != 1.0:
            z.mul_(self.scale)
        if self.cap is not None:
            z.div_(self.cap).tanh_().mul_(self.cap)
        if temperature != 1.0:
            z.div_(temperature)
        return z.view(*hidden.shape[:-1], -1)

    def through(
        self, grad: Float[Tensor, "n vocab"], logits: Float[Tensor, "n vocab"] | None, temperature: float
    ) -> Float[Tensor, "n vocab"]:
        """From the gradient with respect to z to that with respect to W h + b, in place.

        Args:
            grad: It becomes the result.
            logits: z; where there is a cap.
            temperature: T.
        """
        factor = self.scale / temperature
        if self.cap is not None:
            assert logits is not None  # noqa: S101  (kept where there is a cap)
            slope = logits.mul_(temperature / self.cap).square_().neg_().add_(1.0)
            grad.mul_(slope)
        return grad if factor == 1.0 else grad.mul_(factor)


def token_logprobs(
    head: Head,
    hidden: Float[Tensor, "n hidden"],
    target: Int[Tensor, " n"],
    temperature: float,
    *,
    entropy_gradient: bool = False,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Log-probs of the targets and entropies, in float32.

    Args:
        head: What makes logits of hidden states.
        hidden: (n, hidden), one row a token to predict.
        target: (n,), the tokens.
        temperature: T > 0.
        entropy_gradient: Whether the entropies are differentiable, for a bonus. It costs one more buffer of a
            chunk's size in backward.

    Returns:
        Log-probs (nats; differentiable) and entropies (nats; detached, unless asked for).
    """
    logprobs, entropies = _TokenLogprobs.apply(
        hidden, head.weight, head.bias, head, target, temperature, entropy_gradient
    )
    return logprobs, entropies


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        head: Head,
        target: Tensor,
        temperature: float,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropies, normalisers = (
            hidden.new_empty(len(hidden), dtype=torch.float32) for _ in range(3)
        )
        for part in _chunks(hidden, head):
            z = head.logits(hidden[part], temperature)
            highest = z.amax(-1, keepdim=True)
            z.sub_(highest)
            chosen = z.gather(-1, target[part, None])[:, 0]
            weights = z.exp()
            total = weights.sum(-1)
            normaliser = total.log()
            logprobs[part] = chosen - normaliser
            entropies[part] = (
                normaliser - weights.mul_(z.clamp_(min=-1e30)).sum(-1) / total
            )  # 0 · −∞ is 0 here
            normalisers[part] = normaliser + highest[:, 0]
        ctx.head, ctx.temperature, ctx.entropy_gradient = head, temperature, entropy_gradient
        ctx.save_for_backward(hidden, target, normalisers, entropies if entropy_gradient else None)
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_entropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, target, normalisers, entropies = ctx.saved_tensors
        head, temperature = ctx.head, ctx.temperature
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_bias = torch.zeros_like(head.bias) if needs_bias else None
        grad_weight = None
        for part in _chunks(hidden, head):
            z = head.logits(hidden[part], temperature)
            kept = z.clone() if head.cap is not None else None
            z.sub_(normalisers[part, None])  # log π
            if ctx.entropy_gradient:
                # 0 · −∞ is 0 here
                factor = z.clamp(min=-1e30).add_(entropies[part, None]).mul_(-grad_entropy[part, None])
                g = z.exp_().mul_(factor.sub_(grad[part, None]))
            else:
                g = z.exp_().mul_(-grad[part, None])
            g.scatter_add_(-1, target[part, None], grad[part, None])
            g = head.through(g, kept, temperature).to(head.weight.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = product(g, head.weight.detach().T).to(hidden.dtype)
            if needs_weight:
                grad_weight = accumulate(head.weight, grad_weight, g, hidden[part].to(g.dtype))
            if grad_bias is not None:
                grad_bias += g.sum(0)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None


def _chunks(hidden: Float[Tensor, "n hidden"], head: Head) -> list[slice]:
    size = max(1, CHUNK_ELEMENTS // len(head.weight))
    return [slice(i, min(i + size, len(hidden))) for i in range(0, len(hidden), size)]
