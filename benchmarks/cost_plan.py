"""A step on so many GPUs: which placements fit, and what each stage takes at both ends of the assumptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from cost_machine import BAND, GIB, H100, Gpu, Rates, Reached
from cost_model import (
    BFLOAT16,
    FLOAT32,
    GROUPRL,
    GROUPRL_VLLM,
    VERL,
    Batch,
    ModelShape,
    Way,
    Work,
    decode,
    more_forwards,
    prefill,
    training,
    training_tokens,
    with_kl,
)

USABLE = 0.9
"""Of a GPU's memory: the rest is CUDA's context, NCCL's buffers and what the allocator loses."""
LOGIT_CHUNK = 4 * 64 * 2**20
"""Bytes of the LM head's chunk of logits, and of what is worked out from them."""
NF4_BYTES = 0.53
"""Of a weight in 4 bits, with its scales."""
NF4_READ = NF4_BYTES + 2 * FLOAT32
"""Bytes that move for a 4-bit weight in a product: read, written out in float32, and read again."""
MODES = ("full", "lora", "qlora")
STAGES = (
    "prefill",
    "decode",
    "reward",
    "log-probs, KL",
    "training",
    "gradients",
    "optimizer",
    "hand-over",
)


@dataclass(frozen=True)
class Plan:
    """A placement.

    Args:
        shape: The model.
        batch: Of all GPUs together.
        gpus: How many.
        gpu: Of which kind.
        way: grouprl with its own engine, grouprl with vLLM, or verl.
        sharded: FSDP: weights, gradients and moments are cut over all GPUs. Otherwise each holds them whole (DP).
        tensor_parallel: GPUs that sample together. grouprl's own engine samples on one.
        mode: "full", "lora" (frozen float32 weights and adapters) or "qlora" (frozen 4-bit weights).
        rank: Of the adapters.
        checkpointing: Layers keep their input alone.
        micro_batch_tokens: Most tokens of a forward and backward; fewer where memory asks for it.
        beta: Whether there is a KL to a reference.
        reward_s: Seconds of a completion's reward on one core.
        reward_processes: That score at a time, for each GPU.
        call_s: Of a layer, as measured here.
    """

    shape: ModelShape
    batch: Batch
    gpus: int = 1
    gpu: Gpu = H100
    way: Way = GROUPRL
    sharded: bool = False
    tensor_parallel: int = 1
    mode: str = "full"
    rank: int = 32
    checkpointing: bool = True
    micro_batch_tokens: int = 16_384
    beta: bool = False
    reward_s: float = 0.07
    reward_processes: int = 4
    call_s: float = 800e-6

    @property
    def serves(self) -> bool:
        """Whether a serving engine samples."""
        return self.way is not GROUPRL

    @property
    def sampler_dtype(self) -> int:
        """Bytes of a number in sampling: 4-bit weights are worked with in float32."""
        return FLOAT32 if self.mode == "qlora" else BFLOAT16

    @property
    def trained(self) -> float:
        """Weights that are trained."""
        return self.shape.parameters if self.mode == "full" else self.shape.lora_parameters(self.rank)

    @property
    def share(self) -> int:
        """GPUs over which what is sharded is cut."""
        return self.gpus if self.sharded else 1

    @property
    def sampled(self) -> Batch:
        """What one replica of the sampler samples: whole groups, so the one with the most."""
        return self.batch.of(ceil(self.batch.prompts * self.tensor_parallel / self.gpus))

    @property
    def trained_batch(self) -> Batch:
        """What the GPU with the most trains on: whole groups in grouprl, single completions in verl."""
        groups = self.batch.prompts / self.gpus
        mine = self.batch.of(ceil(groups) if self.way is not VERL else max(groups, 1 / self.batch.G))
        return with_kl(mine) if self.beta else mine

    @property
    def name(self) -> str:
        kind = {"lora": f"LoRA {self.rank}", "qlora": f"LoRA {self.rank} on 4 bits"}.get(self.mode, "")
        cut = "FSDP" if self.sharded else ("DP" if self.gpus > 1 else "")
        sampler = "" if self.tensor_parallel == 1 else f"vLLM over {self.tensor_parallel}"
        return ", ".join(part for part in (kind, cut, sampler) if part) or "whole"


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest GPU.

    Args:
        training: By what, while it trains, with the smallest micro-batch that works.
        sampling: By what, while it samples, with the smallest cache that works.
        room: Of the GPU, as far as it is used.
        at_once: Completions that the sampler's cache has room for.
        micro_batch_tokens: That fit, as far as asked for.
    """

    training: dict[str, float]
    sampling: dict[str, float]
    room: float
    at_once: float
    micro_batch_tokens: int

    @property
    def needed(self) -> float:
        return max(sum(self.training.values()), sum(self.sampling.values()))

    @property
    def fits(self) -> bool:
        return self.needed <= self.room

    @property
    def lacking(self) -> str:
        """What is too much, in words; empty where it fits."""
        if self.fits:
            return ""
        when = "training" if sum(self.training.values()) > self.room else "sampling"
        parts = sorted((self.training if when == "training" else self.sampling).items(), key=lambda p: -p[1])
        most = ", ".join(f"{value / GIB:.0f} of {what}" for what, value in parts[:2])
        return f"{when} needs {sum(v for _, v in parts) / GIB:.0f} GiB ({most})"


FEWEST_TOKENS = 2048
"""A micro-batch of fewer tokens leaves a GPU's matrix units idle: memory has to have room for as many."""


def memory(plan: Plan) -> Memory:
    """What lies on the fullest GPU in training and in sampling.

    Weights, gradients and AdamW's moments are in float32 (16 bytes a trained weight), as grouprl and verl have them,
    and cut over the GPUs by FSDP. Layers compute in bfloat16: from a whole rounded copy under autocast (DP), from two
    layers gathered at a time, with embedding and head (FSDP). The sampler's weights are a bfloat16 copy, whole on each
    GPU (grouprl's own engine) or cut over `tensor_parallel`; verl's are put away while it trains, grouprl's are not; of
    sharded weights rank 0 keeps a whole copy to hand over to a server; 4-bit weights are sampled from as they are.
    Gradients and activations exist while it trains alone; where an engine stays beside it, micro-batch and cache share
    what is free.
    """
    shape, P = plan.shape, plan.shape.parameters
    room, cut = USABLE * plan.gpu.memory, plan.share
    frozen = {"full": 0.0, "lora": FLOAT32 * P, "qlora": NF4_BYTES * shape.body + FLOAT32 * (P - shape.body)}
    held = {
        "weights": (frozen[plan.mode] + FLOAT32 * plan.trained) / cut,
        "moments": 8 * plan.trained / cut,
    }
    sampler = {} if plan.mode == "qlora" else {"the sampler's weights": BFLOAT16 * P / plan.tensor_parallel}
    if plan.way is GROUPRL_VLLM and plan.sharded:
        sampler["a copy to hand over"] = BFLOAT16 * P  # rank 0's
    away = plan.way is VERL
    layer = shape.body / shape.layers
    copies = 2 * BFLOAT16 * (layer + shape.head) if plan.sharded else BFLOAT16 * shape.body
    if plan.mode != "full" and plan.checkpointing:
        copies = min(copies, 2 * BFLOAT16 * layer)  # of frozen weights none is kept for the gradient
    state = {
        **held,
        "gradients": FLOAT32 * plan.trained / cut,
        "bfloat16 copies": float(copies),
        **({} if away else sampler),
    }
    token = shape.saved_bytes(BFLOAT16, checkpointing=plan.checkpointing)
    token += shape.layer_bytes(BFLOAT16) if plan.checkpointing else 0
    state["logits"] = float(LOGIT_CHUNK)
    each, group = cache_bytes(plan)
    # grouprl's engine takes whole groups, a serving engine single completions.
    least = min(group, 16 * each) if plan.serves else group
    together = plan.way is GROUPRL_VLLM  # what its engine has is not given back while the model trains
    if together:
        state["keys and values"] = least
    free = room - sum(state.values())
    fewest = min(FEWEST_TOKENS, plan.micro_batch_tokens)
    tokens = int(min(max(free / token / (2 if together else 1), fewest), plan.micro_batch_tokens))
    train = {**state, "activations": fewest * token}
    left = least + free - tokens * token if together else room - sum(held.values()) - sum(sampler.values())
    at_once = left / each if plan.serves else left // group * plan.batch.G
    return Memory(train, {**held, **sampler, "keys and values": least}, room, max(at_once, 0.0), tokens)


def cache_bytes(plan: Plan) -> tuple[float, float]:
    """Of a completion's keys and values, with its share of its prompt's, on one GPU; and of a group's."""
    number = plan.sampler_dtype * plan.shape.cache_numbers / plan.tensor_parallel
    batch = plan.batch
    # grouprl's own engine takes the room of the longest up front; a serving engine page by page: the average counts.
    own = batch.completion_tokens if plan.serves else batch.longest
    group = number * (batch.prompt_tokens + batch.G * own)
    return group / batch.G, group


@dataclass(frozen=True)
class Step:
    """Seconds of a step by stage, at one end of the band."""

    plan: Plan
    reached: Reached
    seconds: dict[str, float]

    @property
    def total(self) -> float:
        """Rewards that come in while other completions are sampled take no time of their own, as far as they fit in."""
        parts = dict(self.seconds)
        if self.plan.way is VERL:
            parts["reward"] = max(0.0, parts["reward"] - parts["decode"])
        return sum(parts.values())

    @property
    def completions_per_hour(self) -> float:
        return 3600 * self.plan.batch.completions / self.total


def step(plan: Plan, reached: Reached, found: Memory | None = None) -> Step:
    """Seconds of each stage of a step on the GPU that has the most to do."""
    found = found or memory(plan)
    shape, gpus = plan.shape, plan.gpus
    ours = plan.way is not VERL
    sampling = reached.rates(plan.gpu, plan.call_s, training=False, head_float32=plan.mode == "qlora")
    if plan.mode == "qlora":
        slower = plan.gpu.float32 * reached.float32
        sampling = replace(
            sampling, body=slower, attention=slower, weights=sampling.weights * FLOAT32 / NF4_READ
        )
    learning = reached.rates(plan.gpu, plan.call_s, training=True, head_float32=ours)
    looking = replace(learning, body=sampling.body, attention=sampling.attention)
    mine, tokens = plan.trained_batch, found.micro_batch_tokens

    first = prefill(shape, plan.sampled, plan.way, plan.sampler_dtype)
    forwards = decode(shape, plan.sampled, plan.way, plan.sampler_dtype, at_once=max(found.at_once, 1.0))
    train = training(
        shape,
        mine,
        plan.way,
        BFLOAT16,
        micro_batch_tokens=tokens,
        checkpointing=plan.checkpointing,
        adapters=plan.mode != "full",
    )
    extra = more_forwards(shape, mine, plan.way, BFLOAT16, reference=plan.beta, micro_batch_tokens=tokens)
    trained_s = learning.seconds(train)
    moved_s = _gradients_s(plan, reached, training_tokens(mine, plan.way)[0], tokens)
    return Step(
        plan,
        reached,
        {
            "prefill": sampling.seconds(first * (1 / plan.tensor_parallel)),
            "decode": sum(n * _decode_step_s(plan, reached, sampling, work) for n, work in forwards),
            "reward": plan.reward_s * plan.batch.completions / (plan.reward_processes * gpus),
            "log-probs, KL": looking.seconds(extra),
            "training": trained_s,
            "gradients": max(0.0, moved_s - reached.overlap * trained_s),
            "optimizer": learning.optimizer(plan.trained / plan.share, shape.layers),
            "hand-over": _hand_over_s(plan, reached, learning.stream),
        },
    )


def _decode_step_s(plan: Plan, reached: Reached, rates: Rates, work: Work) -> float:
    """A decoding step: the device's work cut over the GPUs that sample together, and what these tell each other."""
    if not plan.serves:
        return rates.seconds(work)
    tp, rows = plan.tensor_parallel, work.head / (2 * plan.shape.head)
    received = 2 * (tp - 1) / tp * BFLOAT16 * plan.shape.hidden * rows
    reduces = 2 * plan.shape.layers if tp > 1 else 0
    told = reduces * (reached.reduce_s + plan.gpu.transfer_s(received, tp, reached.transfer))
    return replace(rates, call_s=0.0).seconds(work * (1 / tp)) + told + reached.step_s


def _gradients_s(plan: Plan, reached: Reached, tokens: float, micro_batch_tokens: int) -> float:
    """Seconds of the transfers that belong to training.

    DP      2 · 4 P' (N − 1) / N                                all-reduce of float32 gradients, once
    FSDP    m (2 · 2 P + 4 P') (N − 1) / N                      for each of m micro-batches: weights gathered in
                                                                bfloat16 forward and backward, gradients scattered
    """
    others = (plan.gpus - 1) / plan.gpus
    if not plan.sharded:
        received = 2 * FLOAT32 * plan.trained * others
    else:
        times = max(1.0, ceil(tokens / micro_batch_tokens))
        received = times * (2 * BFLOAT16 * plan.shape.parameters + FLOAT32 * plan.trained) * others
    return plan.gpu.transfer_s(received, plan.gpus, reached.transfer)


def _hand_over_s(plan: Plan, reached: Reached, stream: float) -> float:
    """The sampler gets the new weights: read in float32 and written in bfloat16, gathered first where they are cut."""
    P = plan.shape.parameters
    if plan.mode == "qlora":
        return 0.0  # sampled from as they are
    copied = (FLOAT32 + BFLOAT16) * P / stream
    gathered = plan.gpu.transfer_s(BFLOAT16 * P, plan.gpus, reached.transfer) if plan.sharded else 0.0
    return copied + gathered + (reached.switch_s if plan.way is VERL else 0.0)


def placements(
    shape: ModelShape,
    batch: Batch,
    gpus: int,
    *,
    gpu: Gpu = H100,
    modes: Sequence[str] = MODES,
    **options: object,
) -> list[Plan]:
    """All that may be tried on so many GPUs: grouprl's with each engine, then verl's."""
    first = Plan(shape, batch, gpus, gpu, **options)  # type: ignore[arg-type]
    degrees = [n for n in (1, 2, 4, 8) if n <= gpus and shape.kv_heads % n == 0]
    found = []
    for mode in modes:
        # What is cut by FSDP has no 4-bit weights, and a vLLM server of grouprl's takes weights within one machine.
        for sharded in (False, True) if gpus > 1 and mode != "qlora" else (False,):
            found.append(replace(first, mode=mode, sharded=sharded))
            if mode != "qlora" and gpus <= gpu.in_machine:
                found.append(replace(first, mode=mode, sharded=sharded, way=GROUPRL_VLLM))
    if "full" in modes:
        found += [replace(first, way=VERL, sharded=True, tensor_parallel=n) for n in degrees]
    return found


def best(plans: Sequence[Plan]) -> Plan | None:
    """The placement that fits whose step is the shortest, by the geometric mean of both ends; None where none fits."""
    fitting = [(plan, memory(plan)) for plan in plans]
    fitting = [(plan, found) for plan, found in fitting if found.fits]
    if not fitting:
        return None
    return min(fitting, key=lambda one: prod(step(one[0], reached, one[1]).total for reached in BAND))[0]
