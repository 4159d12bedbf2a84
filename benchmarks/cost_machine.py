"""Seconds of counted work: a machine's rates, from its data sheet or from a fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from cost_model import ADAMW_BYTES, Work

GIB = 2**30
OPTIMIZER_CALLS = 0.2
"""What the host takes for a layer's tensors in an optimizer step, over a layer's call in a forward."""


@dataclass(frozen=True)
class Rates:
    """What a processor does in a second.

    A product waits for its arithmetic or for its weights, whichever takes longer, attention for its arithmetic or its
    keys; what is left is done after one another:

        t = max(body / r_body + head / r_head, weights / r_weights) + max(attention / r_attention, cache / r_cache)
            + activations / r_activations + logits / r_logits   (+ calls · call)

    Args:
        body: Operations of the layers' products.
        head: Operations of the LM head's.
        attention: Operations of attention.
        weights: Bytes of weights, when few tokens share them.
        cache: Bytes of keys and values.
        activations: Bytes kept for backward, with the elementwise work that makes and uses them; inf: it is in `body`.
        logits: Logits that a softmax goes over.
        stream: Bytes of the optimizer's pass over the weights.
        call_s: Seconds that the host takes to call a layer.
        asynchronous: Whether the host calls ahead of the device: then t is the longer of the two, not their sum.
    """

    body: float
    head: float
    attention: float
    weights: float
    cache: float
    activations: float
    logits: float
    stream: float
    call_s: float
    asynchronous: bool = False

    def seconds(self, work: Work) -> float:
        products = max(work.body / self.body + work.head / self.head, work.weights / self.weights)
        attention = max(work.attention / self.attention, work.cache / self.cache)
        device = products + attention + work.activations / self.activations + work.logits / self.logits
        host = work.calls * self.call_s
        return max(device, host) if self.asynchronous else device + host

    def of_steps(self, steps: Iterable[tuple[float, Work]]) -> float:
        """Seconds of forwards after one another: (how many, work of one)."""
        return sum(count * self.seconds(work) for count, work in steps)

    def optimizer(self, trained: float, layers: int) -> float:
        """AdamW's step over so many weights in so many layers, gradient clipping included."""
        return ADAMW_BYTES * trained / self.stream + OPTIMIZER_CALLS * layers * self.call_s


@dataclass(frozen=True)
class Gpu:
    """A GPU in its machine, by the data sheet.

    Args:
        name: Of the product.
        bfloat16: Operations a second of dense bfloat16 products (half of what is printed "with sparsity").
        float32: Operations a second in float32, without TF32, which torch leaves off.
        memory: Bytes that it holds.
        bandwidth: Bytes a second of that memory.
        link: Bytes a second that a GPU sends to the others of its machine (one direction).
        network: Bytes a second that a GPU sends to other machines.
        in_machine: GPUs of a machine.
        source: Where the numbers are from.
    """

    name: str
    bfloat16: float
    float32: float
    memory: float
    bandwidth: float
    link: float
    network: float
    in_machine: int = 8
    source: str = ""

    def transfer_s(self, received: float, gpus: int, share: float) -> float:
        """Seconds until each of so many GPUs has received so many bytes of the others.

        Within a machine over its links; between machines each machine takes what it lacks over all its adapters at
        once, and hands it round: the slower of the two.

        Args:
            received: Bytes that each receives; those of its own not counted.
            gpus: That take part.
            share: Of the printed rates that is reached.
        """
        if gpus <= 1:
            return 0.0
        machines = -(-gpus // self.in_machine)
        inside = received / self.link
        between = received * (1 - 1 / machines) / (self.in_machine * self.network)
        return max(inside, between) / share


H100 = Gpu(
    "H100 SXM",
    bfloat16=989.4e12,
    float32=66.9e12,
    memory=80 * GIB,
    bandwidth=3.35e12,
    link=450e9,
    network=50e9,
    source="NVIDIA H100 Tensor Core GPU data sheet (BF16 1,979 TFLOPS with sparsity, FP32 67, 80 GB, 3.35 TB/s, NVLink "
    "900 GB/s both ways); DGX H100: one 400 Gb/s adapter a GPU",
)
H200 = Gpu(
    "H200 SXM",
    bfloat16=989.4e12,
    float32=66.9e12,
    memory=140 * GIB,
    bandwidth=4.8e12,
    link=450e9,
    network=50e9,
    source="NVIDIA H200 Tensor Core GPU data sheet (as H100, 141 GB, 4.8 TB/s)",
)
A100 = Gpu(
    "A100 SXM 80GB",
    bfloat16=312e12,
    float32=19.5e12,
    memory=80 * GIB,
    bandwidth=2.039e12,
    link=300e9,
    network=25e9,
    source="NVIDIA A100 Tensor Core GPU data sheet (BF16 312 TFLOPS dense, FP32 19.5, 80 GB, 2,039 GB/s, NVLink "
    "600 GB/s both ways); DGX A100: one 200 Gb/s adapter a GPU",
)
GPUS = {"h100": H100, "h200": H200, "a100": A100}

LOGIT_BYTES = 16
"""Bytes that move for a logit in a softmax over the vocabulary: four passes in float32."""


@dataclass(frozen=True)
class Reached:
    """How much of a data sheet is reached: one end of a band.

    Args:
        name: Of the end.
        training: Share of the bfloat16 rate in forward and backward (elementwise work is in it).
        prefill: The same in a forward alone.
        float32: Share of the float32 rate in the LM head.
        bandwidth: Share of the memory's rate, in decoding and in the optimizer.
        transfer: Share of links and adapters.
        overlap: Share of the training's transfers that hides behind its arithmetic.
        call_factor: Seconds of a layer's call on that host, over those measured here.
        step_s: Seconds that a serving engine (vLLM) takes for a decoding step beside the device's work.
        reduce_s: Seconds that an all-reduce of tensor parallelism takes beside its bytes.
        switch_s: Seconds in which an engine that shares its GPU with training goes to sleep and wakes.
    """

    name: str
    training: float
    prefill: float
    float32: float
    bandwidth: float
    transfer: float
    overlap: float
    call_factor: float
    step_s: float
    reduce_s: float
    switch_s: float

    def rates(self, gpu: Gpu, call_s: float, *, training: bool, head_float32: bool) -> Rates:
        """Rates of a GPU in training, or in sampling.

        Args:
            gpu: The data sheet.
            call_s: A layer's call, as measured here.
            training: Which of the two shares counts.
            head_float32: Whether the LM head multiplies in float32.
        """
        body = gpu.bfloat16 * (self.training if training else self.prefill)
        bandwidth = gpu.bandwidth * self.bandwidth
        return Rates(
            body=body,
            head=gpu.float32 * self.float32 if head_float32 else body,
            attention=body,
            weights=bandwidth,
            cache=bandwidth,
            activations=inf,
            logits=bandwidth / LOGIT_BYTES,
            stream=bandwidth,
            call_s=call_s * self.call_factor,
            asynchronous=True,
        )


FAST = Reached("fast", 0.50, 0.60, 0.80, 0.80, 0.85, 1.0, 0.5, 0.001, 10e-6, 1.0)
SLOW = Reached("slow", 0.25, 0.30, 0.50, 0.40, 0.50, 0.0, 1.2, 0.005, 25e-6, 6.0)
BAND = (FAST, SLOW)
