"""What a GRPO step costs, counted: tokens, floating-point operations and bytes of each stage, from the shapes alone.

Nothing here knows a machine. A product of n tokens with a weight of w numbers is 2 n w operations forward, and 4 n w
backward; attention is 4 d operations for each pair of a query of width d and a key that it sees, forward, and 2.5 times
that backward (flash attention works the scores out again). Counted is what grouprl's code does, or what the plain way
does:

    prompts    run once a group in sampling and in training        |  plain: once a completion
    training   completions of groups with spread alone             |  plain: all
    LM head    completion tokens alone, worked out again backward  |  plain: the same tokens, logits kept

`benchmarks/cost_machine.py` makes seconds of it, `benchmarks/cost_plan.py` memory and placements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from math import log, sqrt

BACKWARD = 2.0
"""Operations of a product backward, over those forward: one product for the input, one for the weight."""
FLASH_BACKWARD = 2.5
"""The same of attention: five products backward, two forward."""
FLOAT32, BFLOAT16 = 4, 2
ADAMW_BYTES = 40
"""Bytes that move for a trained weight in an optimizer step: weight, gradient and two moments read, three of them
written (28), and the gradient's norm and scaling (12)."""


@dataclass(frozen=True)
class ModelShape:
    """A decoder of the Llama kind: grouped-query attention and a gated MLP.

    Args:
        name: For tables.
        layers: Of the decoder.
        hidden: Width of the residual stream.
        intermediate: Width of the MLP.
        heads: Of the queries.
        kv_heads: Of keys and values.
        head_dim: Width of a head.
        vocabulary: Rows of the LM head.
        tied: Whether the LM head is the embedding.
        bias: Whether queries, keys and values have one (Qwen2).
    """

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool = True
    bias: bool = False

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def body(self) -> int:
        """Weights that each token is multiplied with in the layers."""
        attention = 2 * self.hidden * (self.q_width + self.kv_width)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def head(self) -> int:
        """Weights of the LM head."""
        return self.hidden * self.vocabulary

    @property
    def parameters(self) -> int:
        """All of them, norms and biases too."""
        biases = self.q_width + 2 * self.kv_width if self.bias else 0
        return (
            self.body
            + (1 if self.tied else 2) * self.head
            + self.layers * (2 * self.hidden + biases)
            + self.hidden
        )

    @property
    def cache_numbers(self) -> int:
        """Keys and values that a token leaves behind."""
        return 2 * self.layers * self.kv_width

    def saved_bytes(self, dtype: int = FLOAT32, *, checkpointing: bool = False) -> float:
        """Bytes that a token keeps from forward to backward.

            a layer    24 h + 8 + 8 i + 8 q + 4 heads + 8 kv     float32
                       26 h + 8 + 8 i + 4 q + 4 heads + 4 kv     layers in bfloat16 under autocast, norms in float32
                       4 h                                       checkpointing: its input
            behind     12 h + 4                                  the last norm and the states that the head takes

        h, i, q and kv are the widths of residual stream, MLP, queries and keys. Read off `saved_tensors_hooks` for
        models of different widths (`training.memory.saved_bytes`), and tested against it. With checkpointing
        a layer's own share exists once more while it runs backward; that is `layer_bytes`.
        """
        each = FLOAT32 * self.hidden if checkpointing else self.layer_bytes(dtype)
        return self.layers * each + 12 * self.hidden + 4

    def layer_bytes(self, dtype: int = FLOAT32) -> float:
        """Of `saved_bytes`, what one layer keeps without checkpointing."""
        wide = 24 if dtype == FLOAT32 else 26
        return (
            wide * self.hidden
            + 8
            + 8 * self.intermediate
            + 2 * dtype * (self.q_width + self.kv_width)
            + 4 * self.heads
        )

    def lora_parameters(self, rank: int) -> int:
        """Trained weights of adapters on every linear layer but the head."""
        h, i, q, kv = self.hidden, self.intermediate, self.q_width, self.kv_width
        return self.layers * rank * ((h + q) + 2 * (h + kv) + (q + h) + 3 * (h + i))


@dataclass(frozen=True)
class Batch:
    """What a step samples and trains on.

    Args:
        prompts: Groups.
        G: Completions of each.
        prompt_tokens: In a prompt, on average.
        completion_tokens: In a completion, on average.
        longest_tokens: Most tokens of a completion; 0: all are of the average length. In between, the share still going
            after t tokens is (1 − t / longest)^(longest / average − 1), whose mean is the average.
        dead_share: Share of groups without spread, which need no training.
    """

    prompts: float
    G: int
    prompt_tokens: int
    completion_tokens: int
    longest_tokens: int = 0
    dead_share: float = 0.0

    @property
    def completions(self) -> float:
        return self.prompts * self.G

    @property
    def longest(self) -> int:
        return max(self.longest_tokens, self.completion_tokens)

    def going(self, tokens: float) -> float:
        """Share of the completions that have more than so many tokens."""
        if tokens >= self.longest:
            return 0.0
        return float((1 - tokens / self.longest) ** (self.longest / self.completion_tokens - 1))

    def tails(self) -> Batch:
        """Completions without their last token."""
        return replace(
            self,
            completion_tokens=max(self.completion_tokens - 1, 1),
            longest_tokens=max(self.longest - 1, 1),
        )

    def of(self, prompts: float) -> Batch:
        """The same with so many prompts."""
        return replace(self, prompts=prompts)


@dataclass(frozen=True)
class Way:
    """How the work is done.

    Args:
        name: For tables.
        prefill_once: Sampling runs a prompt once for its group.
        cache_once: A decoding step reads a prompt's keys once for its group, not once a completion.
        share_prompt: Training runs a prompt once for its group.
        skip_dead: Training leaves groups without spread out.
        old_logprobs: A forward more for the log-probs before the update.
        head_again: The LM head is worked out again backward, and no logits are kept.
    """

    name: str
    prefill_once: bool = True
    cache_once: bool = True
    share_prompt: bool = True
    skip_dead: bool = True
    old_logprobs: bool = False
    head_again: bool = True


GROUPRL = Way("grouprl")
GROUPRL_VLLM = Way("grouprl, vLLM samples", cache_once=False)
VERL = Way("verl", cache_once=False, share_prompt=False, skip_dead=False, old_logprobs=True)
"""verl 0.9.1 as docs/scaling.md configures it: vLLM with prefix caching, packed sequences without padding, a forward of
its own for old log-probs, and its fused LM head. SkyRL 0.4.0 does about the same."""
PLAIN = Way(
    "plain",
    prefill_once=False,
    cache_once=False,
    share_prompt=False,
    skip_dead=False,
    head_again=False,
)
"""Each completion with its own prompt, in sampling and in training: transformers' `generate`, and a padded batch."""


@dataclass(frozen=True)
class Work:
    """Sums that a machine's rates make seconds of.

    Args:
        body: Operations of the layers' products.
        head: Operations of the LM head's.
        attention: Operations of attention.
        weights: Bytes of weights that products read; they wait for these or for their arithmetic, whichever is longer.
        cache: Bytes of keys and values that attention reads; likewise.
        activations: Bytes kept for backward: what elementwise work goes with. A forward alone counts a third.
        logits: Logits that a softmax goes over; backward once more.
        calls: Layers called one after the other: what the host takes, whatever their size.
    """

    body: float = 0.0
    head: float = 0.0
    attention: float = 0.0
    weights: float = 0.0
    cache: float = 0.0
    activations: float = 0.0
    logits: float = 0.0
    calls: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __mul__(self, factor: float) -> Work:
        return Work(*(factor * getattr(self, f.name) for f in fields(self)))

    @property
    def operations(self) -> float:
        return self.body + self.head + self.attention


OTHER_CALLS = 2
"""What a forward calls beside its layers (embedding, norm, head, drawing a token), in layers."""


def forward(shape: ModelShape, tokens: float, pairs: float, predicted: float, dtype: int) -> Work:
    """One forward without gradient.

    Args:
        shape: The model.
        tokens: That run through the layers.
        pairs: Of a query's token and a key's that it sees.
        predicted: Tokens whose logits are worked out.
        dtype: Bytes of a weight and of a number in the layers.
    """
    return Work(
        body=2.0 * shape.body * tokens,
        head=2.0 * shape.head * predicted,
        attention=4.0 * shape.q_width * shape.layers * pairs,
        weights=float(dtype * (shape.body + (shape.head if predicted else 0))),
        activations=shape.saved_bytes(dtype) * tokens / 3,
        logits=shape.vocabulary * predicted,
        calls=shape.layers + OTHER_CALLS,
    )


def prefill(shape: ModelShape, batch: Batch, way: Way = GROUPRL, dtype: int = FLOAT32) -> Work:
    """The prompts, and the first token of each completion."""
    n, P = batch.prompts * (1 if way.prefill_once else batch.G), batch.prompt_tokens
    return forward(shape, n * P, n * P * (P + 1) / 2, batch.completions, dtype)


def decode(
    shape: ModelShape,
    batch: Batch,
    way: Way = GROUPRL,
    dtype: int = FLOAT32,
    *,
    at_once: float = 0.0,
    parts: int = 64,
) -> Iterator[tuple[float, Work]]:
    """The other tokens of the completions: how many forwards of each size, and the work of one.

    Args:
        shape: The model.
        batch: What one replica of the model samples.
        way: Whether a prompt's keys are read once.
        dtype: Bytes of a weight and of a cached number.
        at_once: Most completions in a forward, as memory allows; 0: all. Those that wait come in as others end, so all
            but the last so many run in full forwards.
        parts: Into how many the last ones' tokens are cut, for their changing number and length.

    Yields:
        (forwards, work of one).
    """
    T, limit = batch.completion_tokens, batch.completions
    steps_of_mean = max(T - 1, 0)
    if at_once and at_once < limit:
        waiting, limit = limit - at_once, at_once
        yield (
            waiting * steps_of_mean / limit,
            _decode_step(shape, batch, way, dtype, limit, _mean_own_tokens(batch)),
        )
    last = max(batch.longest - 1, 0)
    width = last / min(parts, last) if last else 0.0
    for k in range(min(parts, last)):
        middle = 0.5 + (k + 0.5) * width  # own tokens in the cache: 1 in the first forward
        yield width, _decode_step(shape, batch, way, dtype, limit * batch.going(middle), middle)


def _mean_own_tokens(batch: Batch) -> float:
    """Own tokens in a completion's cache, on average over all its steps: ∫ t S(t) dt / ∫ S(t) dt."""
    return batch.longest / (batch.longest / batch.completion_tokens + 1)


def _decode_step(shape: ModelShape, batch: Batch, way: Way, dtype: int, rows: float, own: float) -> Work:
    P = batch.prompt_tokens
    cached = rows * own + (rows / batch.G if way.cache_once else rows) * P
    one = forward(shape, rows, rows * (P + own), rows, dtype)
    return one + Work(cache=float(dtype * shape.cache_numbers) * cached)


def training_tokens(batch: Batch, way: Way = GROUPRL) -> tuple[float, float, float]:
    """Tokens through the layers, pairs of them in attention, and tokens that are trained.

    A completion's last token predicts nothing, and is not run.
    """
    groups = batch.prompts * (1 - batch.dead_share if way.skip_dead else 1)
    P, G, tail = batch.prompt_tokens, batch.G, batch.completion_tokens - 1
    prompts = groups if way.share_prompt else groups * G
    square = 2 * tail * _mean_own_tokens(batch.tails())  # E[t²] = 2 ∫ t S dt
    pairs = prompts * P * (P + 1) / 2 + groups * G * (tail * P + (square + tail) / 2)
    return prompts * P + groups * G * tail, pairs, groups * G * (tail + 1)


def training(
    shape: ModelShape,
    batch: Batch,
    way: Way = GROUPRL,
    dtype: int = FLOAT32,
    *,
    micro_batch_tokens: int = 384,
    checkpointing: bool = False,
    adapters: bool = False,
) -> Work:
    """Forward and backward of what has an advantage.

    Args:
        shape: The model.
        batch: What one process trains on.
        way: What is left out.
        dtype: Bytes of a number in the layers' products.
        micro_batch_tokens: Tokens of a forward and backward.
        checkpointing: A layer's forward runs again in backward.
        adapters: The weights are frozen (LoRA): no product for their gradients. The adapters' own are not counted.
    """
    tokens, pairs, trained = training_tokens(batch, way)
    once = forward(shape, tokens, pairs, trained, dtype)
    back = BACKWARD - (1 if adapters else 0)
    again, head_again = int(checkpointing), int(way.head_again)
    passes = 1 + again + back
    micro_batches = max(1.0, tokens / micro_batch_tokens)
    return Work(
        body=once.body * passes,
        head=once.head * (1 + head_again + back),
        attention=once.attention * (1 + again + FLASH_BACKWARD),
        weights=once.weights * passes * micro_batches,
        activations=once.activations * 3,
        logits=once.logits * 2,
        calls=once.calls * (3 + again) * micro_batches,
    )


def more_forwards(
    shape: ModelShape, batch: Batch, way: Way, dtype: int, *, reference: bool, micro_batch_tokens: int = 384
) -> Work:
    """Forwards without gradient beside training's own: old log-probs where the way makes them, and a KL's reference."""
    tokens, pairs, trained = training_tokens(batch, way)
    micro_batches = max(1.0, tokens / micro_batch_tokens)
    one = forward(shape, tokens, pairs, trained, dtype)
    one = replace(one, weights=one.weights * micro_batches, calls=one.calls * micro_batches)
    return one * (int(way.old_logprobs) + int(reference))


def with_kl(batch: Batch) -> Batch:
    """A KL term in the loss reaches every completion: no group is left out."""
    return replace(batch, dead_share=0.0)


def savings(batch: Batch) -> dict[str, float]:
    """What grouprl's way saves against the plain one, as factors of tokens; 1 saves nothing.

        prefill    G                             a prompt once a group
        training   G (P + t) / ((1 − d) (P + G t))   t = T − 1, d the dead share

    Returns:
        "prefill", "shared prompt" and "dead groups" (the two factors of training), and "training", their product.
    """
    plain, ours = training_tokens(batch, PLAIN)[0], training_tokens(batch.of(batch.prompts), GROUPRL)[0]
    alive = training_tokens(replace(batch, dead_share=0.0), GROUPRL)[0]
    return {
        "prefill": float(batch.G),
        "shared prompt": plain / alive,
        "dead groups": alive / ours if ours else float("inf"),
        "training": plain / ours if ours else float("inf"),
    }


SMOLLM2 = ModelShape("SmolLM2-135M", 30, 576, 1536, 9, 3, 64, 49_152)
QWEN_1_5B = ModelShape("Qwen2.5-1.5B", 28, 1536, 8960, 12, 2, 128, 151_936, bias=True)
QWEN_7B = ModelShape("Qwen2.5-7B", 28, 3584, 18_944, 28, 4, 128, 152_064, tied=False, bias=True)
QWEN_32B = ModelShape("Qwen2.5-32B", 64, 5120, 27_648, 40, 8, 128, 152_064, tied=False, bias=True)
KNOWN = (SMOLLM2, QWEN_1_5B, QWEN_7B, QWEN_32B)
"""From their config.json."""


def shape_of(parameters: float) -> ModelShape:
    """A shape of about so many parameters: that of the nearest known model, with its layers kept and its widths scaled.

    Args:
        parameters: In all, at least ten million.
    """
    nearest = min(KNOWN, key=lambda shape: abs(log(shape.parameters / parameters)))
    if abs(nearest.parameters / parameters - 1) < 0.1:
        return nearest
    # The layers go with the square of the width, the vocabulary with the width: l f² + v f = parameters.
    layers, vocabulary = nearest.body, nearest.parameters - nearest.body
    factor = (sqrt(vocabulary**2 + 4 * layers * parameters) - vocabulary) / (2 * layers)
    heads = max(1, round(nearest.heads * factor / nearest.kv_heads)) * nearest.kv_heads
    thin = replace(nearest, heads=heads, hidden=heads * nearest.head_dim, intermediate=0)
    rest = (parameters - thin.parameters) / (3 * thin.layers * thin.hidden)
    shape = replace(thin, intermediate=max(64, round(rest / 64) * 64))
    return replace(shape, name=f"{shape.parameters / 1e9:.3g}B like {nearest.name}")
