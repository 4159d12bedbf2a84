"""Per-token log-probs: the same values and gradients as a plain forward of each sequence."""

import pytest
import tiny
import torch

from grouprl.errors import ModelError
from grouprl.policy import build_rows, completion_logprobs, head, plan_micro_batches
from grouprl.policy.probe import probe
from grouprl.policy.rows import longest_sequence

GROUPS = [
    tiny.group([5, 6, 7, 8], [[9, 10, 11], [12], [13, 14, 15, 16, 1]], group_id="a"),
    tiny.group([20], [[21, 22], [1]], group_id="b"),
    tiny.group([30, 31], [[32, 33, 34]], group_id="c"),
]


def members(groups=GROUPS):
    pairs = [(g, c) for g in groups for c in g.completions]
    return [(i, g, c) for i, (g, c) in enumerate(pairs)]


def plain_logprobs(policy, prompt, completion, temperature=1.0):
    """The reference: one sequence through the model's own forward, logits of all positions."""
    ids = torch.tensor([[*prompt, *completion]])
    logits = policy.model(input_ids=ids, use_cache=False).logits[0].float() / temperature
    chosen = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    return chosen.gather(-1, ids[0, len(prompt) :, None])[:, 0], -(chosen.exp() * chosen).sum(-1)


def all_logprobs(policy, *, budget, share=None, temperature=1.0, groups=GROUPS):
    share = policy.can_share(longest_sequence(members(groups))) if share is None else share
    found = {}
    for batch in plan_micro_batches(members(groups), micro_batch_tokens=budget, share_prefix=share):
        rows = build_rows(batch, pad_id=policy.pad_id, share_prefix=share)
        values, entropies = completion_logprobs(policy, rows, temperature=temperature)
        for k, i in enumerate(rows.indices):
            n = len(members(groups)[i][2].token_ids)
            found[i] = values[k, :n], entropies[k, :n]
    return found


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("budget", [1, 13, 1000])
def test_values_and_gradients_equal_the_plain_forward(family, budget):
    policy = tiny.policy(family)
    weights = torch.linspace(-1, 1, 6)

    policy.model.zero_grad()
    reference = [plain_logprobs(policy, g.prompt_token_ids, c.token_ids) for _, g, c in members()]
    sum(w * lp.sum() for w, (lp, _) in zip(weights, reference)).backward()
    expected = [p.grad.clone() for p in policy.parameters()]

    policy.model.zero_grad()
    found = all_logprobs(policy, budget=budget)
    sum(weights[i] * lp.sum() for i, (lp, _) in found.items()).backward()

    for i, (lp, entropy) in enumerate(reference):
        torch.testing.assert_close(found[i][0], lp, atol=1e-4, rtol=0)
        torch.testing.assert_close(found[i][1], entropy, atol=1e-4, rtol=0)
    for parameter, grad in zip(policy.parameters(), expected):
        error = (parameter.grad - grad).norm() / grad.norm().clamp(min=1e-6)
        assert error <= 1e-4


@pytest.mark.parametrize("family", ["gemma3_text", "mistral"])
def test_a_window_shares_prompts_until_it_bites(family):
    policy = tiny.policy(family, sliding_window=8)
    assert policy.prefix_obstacle is None
    assert policy.can_share(8)
    assert not policy.can_share(9)
    longer = [tiny.group([5, 6, 7, 8], [[9, 10, 11], [13, 14, 15, 16, 17, 18, 1]])]
    reference = [plain_logprobs(policy, g.prompt_token_ids, c.token_ids) for _, g, c in members(longer)]
    found = all_logprobs(policy, budget=1000, groups=longer)
    for i, (lp, _) in enumerate(reference):
        torch.testing.assert_close(found[i][0], lp, atol=1e-4, rtol=0)


def test_a_window_below_the_probe_never_shares():
    assert "exceeds its window of 4" in tiny.policy("mistral", sliding_window=4).prefix_obstacle


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("mamba", "it has linear_attention layers"),
        ("lfm2", "it has conv layers"),
        ("bloom", "its attention is 'eager'"),
    ],
)
def test_a_model_that_cannot_share_a_prompt_says_why(family, why):
    obstacle = tiny.policy(family).prefix_obstacle
    assert why in obstacle
    assert "\n" not in obstacle


@pytest.mark.parametrize(
    "family", ["llama", "qwen2", "qwen3", "mistral", "phi3", "granite", "olmo2", "cohere", "gpt2"]
)
def test_a_model_that_can_share_a_prompt_does(family):
    assert tiny.policy(family).prefix_obstacle is None


def test_the_head_in_chunks_equals_the_head_at_once(monkeypatch):
    policy = tiny.policy()
    whole = all_logprobs(policy, budget=1000)
    monkeypatch.setattr(head, "CHUNK_ELEMENTS", policy.vocab_size * 2)  # two tokens at a time
    for i, (lp, entropy) in all_logprobs(policy, budget=1000).items():
        torch.testing.assert_close(lp, whole[i][0])
        torch.testing.assert_close(entropy, whole[i][1])


def test_temperature_divides_the_logits():
    policy = tiny.policy()
    found = all_logprobs(policy, budget=1000, temperature=0.5)
    for i, g, c in members():
        expected, _ = plain_logprobs(policy, g.prompt_token_ids, c.token_ids, temperature=0.5)
        torch.testing.assert_close(found[i][0], expected, atol=1e-4, rtol=0)


class DoubledHead(torch.nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_a_head_that_is_not_known_is_refused():
    policy = tiny.policy()
    policy.model.lm_head.__class__ = DoubledHead
    with pytest.raises(ModelError, match="its head is of a kind that grouprl does not know"):
        probe(policy)


def test_a_head_that_is_no_linear_layer_is_refused():
    policy = tiny.policy()
    policy.model.lm_head = torch.nn.Sequential(policy.model.lm_head)
    with pytest.raises(ModelError, match="its head is a Sequential, expected a linear layer"):
        probe(policy)


def test_masked_tokens_are_read_but_not_trained():
    """A tool's output inside a completion: later tokens see it, and it has no log-prob of its own."""
    g = tiny.group([5, 6], [[7, 8, 9, 10]], mask=[[True, False, False, True]])
    policy = tiny.policy()
    rows = build_rows([[(0, g, g.completions[0])]], pad_id=1, share_prefix=True)
    values, _ = completion_logprobs(policy, rows)
    expected, _ = plain_logprobs(policy, (5, 6), (7, 8, 9, 10))
    assert rows.completion_mask.tolist() == [[True, False, False, True]]
    assert values[0, 1].item() == values[0, 2].item() == 0.0
    torch.testing.assert_close(values[0, [0, 3]], expected[[0, 3]], atol=1e-4, rtol=0)


def test_nothing_to_train_gives_zeros_with_a_graph():
    g = tiny.group([5, 6], [[7, 8]], mask=[[False, False]])
    policy = tiny.policy()
    values, _ = completion_logprobs(
        policy, build_rows([[(0, g, g.completions[0])]], pad_id=1, share_prefix=True)
    )
    values.sum().backward()
    assert values.tolist() == [[0.0, 0.0]]
