"""How many tokens a forward and backward may hold, from what a token costs and what is free."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from grouprl.policy import Policy, build_rows
from grouprl.policy.head import CHUNK_ELEMENTS
from grouprl.types import Completion, Group, Prompt

GIB = 2**30
PROBE_TOKENS = 64
FEWEST = 64
"""Micro-batches are not made smaller than this for want of memory: the layers would stand idle."""
MOST = {"cpu": 384, "cuda": 16_384}
"""Beyond this a larger micro-batch is hardly faster (docs/performance.md)."""
SHARE = 0.8
"""Of the free memory that may be used: allocators lose some, and other processes want some."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tokens of a micro-batch, and why.

    Args:
        tokens: Most tokens.
        bytes_per_token: What a token leaves behind for backward.
        free: Bytes that were free.
    """

    tokens: int
    bytes_per_token: int
    free: int

    def __str__(self) -> str:
        return (
            f"micro-batches of up to {self.tokens} tokens, {self.tokens * self.bytes_per_token / GIB:.1f} GiB for "
            f"backward ({self.bytes_per_token / 2**20:.2f} MiB a token, {self.free / GIB:.1f} GiB free); "
            "--micro-batch-tokens sets another"
        )


def fit_micro_batch(
    policy: Policy,
    *,
    sampler_bytes: int,
    moments_bytes: int = 8,
    sharers: int = 1,
    slices: int = 1,
    own_critic: bool = False,
    reserved_share: float = 0.0,
) -> MicroBatch:
    """The largest micro-batch that fits the free memory and still pays.

    Args:
        policy: Loaded, its gradients and optimizer not yet allocated.
        sampler_bytes: Of each weight in the sampler's copy; 0 where it makes none.
        moments_bytes: Of the optimizer's moments, for each trained weight.
        sharers: Processes that will take as much of the same memory.
        slices: Ranks over which weights, gradient and moments will be shared out (fsdp), with a whole copy of the
            weights for the sampler on each.
        own_critic: Whether a critic will be made with a backbone of its own: a copy of the model, whose gradient and
            moments are kept as well, and whose forward is kept for the same backward.
        reserved_share: Of the device's whole memory, what another program will take.
    """
    weights = sum(p.numel() for p in policy.model.parameters())
    trained = sum(p.numel() for p in policy.parameters())
    to_come = (4 + moments_bytes) * trained // slices  # the gradient is in float32
    to_come += sampler_bytes * weights
    if slices > 1:
        to_come += 0 if sampler_bytes else 4 * weights
        to_come -= 4 * (weights - weights // slices)  # given back once they are shared out
        to_come += 2 * 4 * policy.head.weight.numel()  # whole in forward and backward, with its gradient
    to_come += 4 * 4 * CHUNK_ELEMENTS  # logits of a chunk, and what is worked out from them
    free = max(0, free_memory(policy.device) - int(reserved_share * total_memory(policy.device))) // sharers
    each, once = saved_bytes(policy)
    to_come += once
    if own_critic:
        backbone = sum(p.numel() for p in policy.model.base_model.parameters() if p.requires_grad)
        to_come += sum(p.nbytes for p in policy.model.parameters()) + (4 + moments_bytes) * backbone + once
        each *= 2
    fits = int((SHARE * free - to_come) / each)
    most = MOST.get(policy.device.type, MOST["cpu"])
    return MicroBatch(min(max(fits, FEWEST), most), each, free)


def saved_bytes(policy: Policy) -> tuple[int, int]:
    """What a forward keeps for backward: bytes for each token, and once, whatever their number (autocast's rounded
    copies of the weights). The weights themselves are not counted. By two forwards of different length."""
    short, long = _kept_by(policy, PROBE_TOKENS // 2), _kept_by(policy, PROBE_TOKENS)
    each = max(1, (long - short) // (PROBE_TOKENS - PROBE_TOKENS // 2))
    return each, max(0, long - each * (PROBE_TOKENS - 1))  # the last token is not run


def _kept_by(policy: Policy, tokens: int) -> int:
    """Bytes that a forward of a sequence keeps for backward, and gives."""
    ids = [i % policy.vocab_size for i in range(tokens)]
    completion = Completion(tuple(ids[1:]), (0.0,) * (len(ids) - 1), (True,) * (len(ids) - 1), "", "stop")
    group = Group("probe", Prompt("probe", ""), "", (ids[0],), (completion,))
    rows = build_rows(
        [[(0, group, completion)]],
        pad_id=policy.pad_id,
        share_prefix=policy.can_share(tokens),
        device=policy.device,
    )
    kept: dict[int, int] = {}

    def note(x: Tensor) -> Tensor:
        if not isinstance(x, nn.Parameter):
            storage = x.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
        return x

    weights = {p.untyped_storage().data_ptr() for p in policy.model.parameters()}
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        hidden = policy.hidden_states(
            rows.input_ids,
            position_ids=rows.position_ids,
            attention_mask=rows.attention_mask,
            layout=rows.packing,
        )
    return sum(size for place, size in kept.items() if place not in weights) + hidden.nbytes


def total_memory(device: torch.device) -> int:
    """Bytes that a device has, or the host."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    import psutil  # type: ignore[import-untyped]

    return int(psutil.virtual_memory().total)


def free_memory(device: torch.device) -> int:
    """Bytes that can be allocated on a device, or on the host within the limit of its control group."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    import psutil

    free = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        free = min(free, limit - int((group / "memory.current").read_text()))
    except (OSError, ValueError):  # no control group, or "max": no limit
        pass
    return max(free, 0)
