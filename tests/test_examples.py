"""The loops of examples/: each is run for real on a tiny model, or, where it cannot be, held against what it calls."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path

import pytest
import tiny
import torch

import grouprl

EXAMPLES = Path(__file__).parent.parent / "examples"
MOST_LINES = 150


@pytest.fixture
def example(monkeypatch):
    """A module of examples/, imported as a script of that folder would be."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def load(name):
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return load


def lowercase(completion, answer):
    """The share of lower-case letters; a random model has some, and can learn to have more."""
    return sum(c.islower() for c in completion) / len(completion) if completion else None


def test_the_plain_loop_raises_the_reward(example):
    made = tiny.policy(seed=1)
    torch.manual_seed(0)
    history = example("plain_loop").train(
        made.model,
        made.tokenizer,
        [(f"{i}+{i}=", "") for i in range(8)],
        lowercase,
        steps=14,
        prompts_per_step=4,
        group_size=8,
        max_new_tokens=8,
        lr=1e-2,
    )
    assert len(history) == 14
    assert sum(history[-3:]) / 3 > sum(history[:3]) / 3 + 0.2, history


def test_a_step_in_which_no_group_has_spread_changes_nothing(example):
    made = tiny.policy(seed=1)
    before = {name: p.detach().clone() for name, p in made.model.named_parameters()}
    history = example("plain_loop").train(
        made.model,
        made.tokenizer,
        [("1+1=", "")],
        lambda completion, answer: 0.3,
        steps=1,
        prompts_per_step=1,
        group_size=3,
        max_new_tokens=2,
    )
    assert history == [pytest.approx(0.3)]
    assert all(torch.equal(before[name], p) for name, p in made.model.named_parameters())


def test_the_plain_loops_task_and_reward(example):
    loop = example("plain_loop")
    prompt, answer = loop.sums(tiny.tokenizer(), count=1, seed=3)[0]
    a, b = map(int, re.findall(r"\d+", prompt))
    assert str(a + b) == answer
    assert "assistant" in prompt
    assert loop.right(f"{a} + {b} = {answer}", answer) == 1.0
    assert loop.right("no number", answer) == loop.right(f"{answer} or 0", answer) == 0.0


def test_its_logprobs_are_those_that_were_sampled_from(example):
    """Prompts of different lengths, padded on the left: each row as it is alone."""
    loop, made = example("plain_loop"), tiny.policy(seed=1)
    torch.manual_seed(0)
    ids, attention, mask = loop.sample(made.model, made.tokenizer, ["1", "12345+67"], 6)
    with torch.no_grad():
        found = loop.logprobs_of(made.model, ids, attention, mask.shape[1])
        for row, there, trained, values in zip(ids, attention, mask, found, strict=True):
            alone = row[there].unsqueeze(0)
            logits = made.model(alone).logits[0, :-1].log_softmax(-1)
            expected = logits.gather(-1, alone[0, 1:, None])[:, 0][-int(trained.sum()) :]
            assert torch.allclose(values[trained], expected, atol=1e-5)


def test_the_tinker_loop_raises_the_reward_on_the_stand_in(example, tiny_model):
    loop, api = example("tinker_loop"), example("tinker_stand_in")
    torch.manual_seed(0)
    history = loop.train(
        api,
        api.ServiceClient(),
        str(tiny_model),
        [(f"{i}+{i}=", "") for i in range(4)],
        lambda text, answer: lowercase(text, answer) or 0.0,
        steps=16,
        prompts_per_step=2,
        group_size=8,
        max_tokens=8,
        lr=1e-2,
    )
    assert sum(history[-3:]) / 3 > sum(history[:3]) / 3 + 0.2, history


def test_the_stand_ins_loss_is_the_documented_one(example, tiny_model):
    """−Σ exp(log π − log π_sampler) A, whose gradient on fresh samples is that of −Σ A log π."""
    loop, api = example("tinker_loop"), example("tinker_stand_in")
    client = api.ServiceClient().create_lora_training_client(base_model=str(tiny_model), rank=8)
    torch.manual_seed(0)
    sampler = client.save_weights_and_get_sampling_client(name="x")
    (one,) = (
        sampler.sample(
            prompt=api.ModelInput.from_ints(tokens=[40, 41, 42]),
            num_samples=1,
            sampling_params=api.SamplingParams(max_tokens=5),
        )
        .result()
        .sequences
    )
    result = client.forward_backward(
        [loop.datum_of(api.types, [40, 41, 42], one, 1.5)], loss_fn="importance_sampling"
    )
    assert result.result()["loss:sum"] == pytest.approx(-1.5 * len(one.tokens), rel=1e-4)


def test_the_vllm_loops_rows_are_laid_out_as_the_loss_reads_them(example):
    ids, attention, mask, logprobs = example("vllm_loop").padded(
        [([5], [6, 7, 8], [-1.0, -2.0, -3.0]), ([1, 2, 3], [4], [-4.0])]
    )
    assert ids.tolist() == [[0, 0, 5, 6, 7, 8], [1, 2, 3, 4, 0, 0]]
    assert attention.int().tolist() == [[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]
    assert mask.tolist() == [[True, True, True], [True, False, False]]
    assert logprobs.tolist() == [[-1.0, -2.0, -3.0], [-4.0, 0.0, 0.0]]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.stem)
def test_an_example_is_short_and_names_what_is_there(path):
    """Also the parts that cannot run here: every name of grouprl's that is used exists."""
    text = path.read_text(encoding="utf-8")
    if path.stem.endswith("_loop"):
        assert len(text.splitlines()) <= MOST_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("grouprl"):
            module = importlib.import_module(node.module)
            assert all(hasattr(module, alias.name) for alias in node.names)
        if isinstance(node, ast.Attribute) and re.fullmatch(r"grouprl(\.\w+)+", chain := ast.unparse(node)):
            found = grouprl
            for name in chain.split(".")[1:]:
                assert hasattr(found, name), chain
                found = getattr(found, name)
