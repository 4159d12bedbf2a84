"""The local engine against `model.generate` and against the trainer's own log-probs."""

import math

import pytest
import tiny
import torch

from grouprl.policy import build_rows, completion_logprobs
from grouprl.rollout import Sampling, generate
from grouprl.types import Prompt

TEXTS = ["a", "what is it", "hello there", "x" * 30]


def prompts(policy, texts=TEXTS, new=12):
    return policy.encode_prompts([Prompt(t, t) for t in texts], max_new_tokens=new)


def run(policy, texts=TEXTS, *, group_size=4, seed=0, stream="train/1", **sampling):
    options = {"max_new_tokens": 12, **sampling}
    return generate(
        policy,
        prompts(policy, texts),
        group_size=group_size,
        sampling=Sampling(**options),
        seed=seed,
        stream=stream,
    )


def tokens(groups):
    return [[c.token_ids for c in g.completions] for g in groups]


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "granite"])
def test_greedy_equals_generate(family):
    """Token for token, but where the two best logits are within 1e-4 and rounding may choose either."""
    policy = tiny.policy(family)
    for group in run(policy, group_size=1, temperature=0.0):
        ids = torch.tensor([group.prompt_token_ids])
        expected = policy.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12
        )[0, ids.shape[1] :].tolist()
        found = list(group.completions[0].token_ids)
        if found != expected:
            first = next(k for k, (a, b) in enumerate(zip(found, expected)) if a != b)
            prefix = torch.tensor([[*group.prompt_token_ids, *expected[:first]]])
            best = policy.model(prefix, use_cache=False).logits[0, -1].topk(2).values
            assert best[0] - best[1] < 1e-4


@pytest.mark.parametrize(
    "family", ["llama", "qwen2", "gemma2", "gemma3_text", "granite", "gpt2", "bloom", "mamba", "lfm2"]
)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampler_logprobs_equal_the_trainers(family, temperature):
    """Left-padded prompts of four lengths, a cache repeated for the group and compacted as rows end."""
    policy = tiny.policy(family)
    groups = run(policy, temperature=temperature)
    for group in groups:
        for i, completion in enumerate(group.completions):
            rows = build_rows([[(i, group, completion)]], pad_id=1, share_prefix=False)
            with torch.no_grad():
                expected, _ = completion_logprobs(policy, rows, temperature=temperature)
            torch.testing.assert_close(torch.tensor([completion.logprobs]), expected, atol=1e-4, rtol=0)


def test_logprobs_are_of_the_full_vocabulary_whatever_top_k_and_top_p():
    policy = tiny.policy()
    for group in run(policy, top_k=3, top_p=0.5):
        rows = build_rows(
            [[(i, group, c)] for i, c in enumerate(group.completions)], pad_id=1, share_prefix=False
        )
        with torch.no_grad():
            expected, _ = completion_logprobs(policy, rows)
        for k, completion in enumerate(group.completions):
            found = torch.tensor(completion.logprobs)
            torch.testing.assert_close(found, expected[k, : len(found)], atol=1e-4, rtol=0)


def test_a_completion_does_not_depend_on_its_batch():
    policy = tiny.policy()
    together = dict(zip(TEXTS, tokens(run(policy))))
    for text in TEXTS:
        assert tokens(run(policy, [text]))[0] == together[text]
    assert tokens(run(policy, TEXTS[::-1])) == [together[t] for t in TEXTS[::-1]]
    one_by_one = generate(
        policy,
        prompts(policy),
        group_size=4,
        sampling=Sampling(max_new_tokens=12),
        seed=0,
        stream="train/1",
        batch_tokens=1,
    )
    assert tokens(one_by_one) == [together[t] for t in TEXTS]


def test_a_larger_group_begins_with_the_smaller_one():
    policy = tiny.policy()
    small, large = run(policy, group_size=2), run(policy, group_size=5)
    assert [g[:2] for g in tokens(large)] == tokens(small)


def test_seed_and_stream_change_the_completions():
    policy = tiny.policy()
    base = tokens(run(policy))
    assert tokens(run(policy)) == base
    assert tokens(run(policy, seed=1)) != base
    assert tokens(run(policy, stream="train/2")) != base


def test_a_prompt_drawn_twice_is_two_groups():
    policy = tiny.policy()
    first, second = run(policy, ["same", "same"])
    assert first.group_id != second.group_id
    assert tokens([first]) != tokens([second])


def test_groups_come_in_the_order_of_the_prompts_with_their_own():
    """p0 p0 p1 p1 …: rows, ids and cache rows are repeated alike."""
    policy = tiny.policy()
    for text, group in zip(TEXTS, run(policy)):
        assert group.prompt.content == group.prompt_text == text
        assert len(group.completions) == 4


def test_finished_and_truncated_are_told_apart_at_the_limit():
    """[5, 6, 7, E] at a limit of 4 has finished; [5, 6, 7, 8] was cut off. Both have four tokens."""
    policy = tiny.policy()
    seen = set()
    for seed in range(12):
        for group in run(policy, ["a", "b"], group_size=8, seed=seed, max_new_tokens=4):
            for c in group.completions:
                assert (c.finish_reason == "stop") == (c.token_ids[-1] in policy.stop_ids)
                assert all(t not in policy.stop_ids for t in c.token_ids[:-1])
                assert c.finish_reason == "stop" or len(c.token_ids) == 4
                assert c.loss_mask == (True,) * len(c.token_ids)
                seen.add((len(c.token_ids), c.finish_reason))
    assert (4, "length") in seen
    assert any(reason == "stop" for _, reason in seen)


def test_every_stop_id_ends_a_completion():
    policy = tiny.policy()
    plain = run(policy, group_size=8)
    common = plain[0].completions[0].token_ids[2]
    policy.model.generation_config.eos_token_id = [1, common]
    for before, after in zip(plain, run(policy, group_size=8)):
        for a, b in zip(before.completions, after.completions):
            cut = a.token_ids.index(common) + 1 if common in a.token_ids else len(a.token_ids)
            assert b.token_ids == a.token_ids[:cut]


def test_stop_strings_cut_the_text_and_keep_the_tokens():
    policy = tiny.policy()
    plain = [c for g in run(policy, group_size=8) for c in g.completions]
    letter = next(ch for c in plain for ch in c.text[1:] if ch.isascii() and ch.isprintable())
    stopped = [c for g in run(policy, group_size=8, stop=(letter,)) for c in g.completions]
    assert any(letter in c.text for c in plain)
    for before, after in zip(plain, stopped):
        assert after.token_ids == before.token_ids[: len(after.token_ids)]
        assert letter not in after.text
        assert after.text == before.text.partition(letter)[0]
        if letter in before.text:
            assert after.finish_reason == "stop"


def test_text_is_what_the_tokens_say():
    policy = tiny.policy()
    for group in run(policy):
        for c in group.completions:
            assert c.text == policy.tokenizer.decode(list(c.token_ids), skip_special_tokens=True)


def test_no_prompts_give_no_groups():
    assert run(tiny.policy(), []) == []


def test_progress_reaches_the_total():
    policy, seen = tiny.policy(), []
    generate(
        policy,
        prompts(policy),
        group_size=2,
        sampling=Sampling(max_new_tokens=3),
        seed=0,
        stream="s",
        batch_tokens=1,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == sorted(seen)  # after each token, never fewer than before
    assert {(2, 8), (4, 8), (6, 8), (8, 8)} <= set(seen)
    assert seen[-1] == (8, 8)
    assert {total for _, total in seen} == {8}


def test_logprobs_are_finite():
    for group in run(tiny.policy(), temperature=0.05):
        assert all(math.isfinite(lp) and lp <= 1e-6 for c in group.completions for lp in c.logprobs)


def test_a_stream_drawn_in_two_calls_is_that_of_one():
    """Group ids go on, and a prompt that comes again is sampled anew, wherever the cut is."""
    policy = tiny.policy("llama")
    texts = ["one", "two", "one", "three", "one", "two"]
    whole = run(policy, texts)
    encoded = prompts(policy, texts)
    for cut in (1, 3, 5):
        later = generate(
            policy,
            encoded[cut:],
            group_size=4,
            sampling=Sampling(max_new_tokens=12),
            seed=0,
            stream="train/1",
            earlier=encoded[:cut],
        )
        assert [g.group_id for g in later] == [g.group_id for g in whole[cut:]]
        assert tokens(later) == tokens(whole[cut:])
    assert tokens(whole)[0] != tokens(whole)[2] != tokens(whole)[4]
