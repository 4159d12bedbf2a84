"""What vLLM is asked and what its answers are as groups, without vLLM."""

import itertools
import math

import pytest
import tiny

from grouprl.errors import ConfigError, RolloutError
from grouprl.rollout import Sampling
from grouprl.rollout.vllm_requests import (
    PROCESSED,
    RAW,
    Sampled,
    group_seed,
    logprobs_mode,
    make_groups,
    make_requests,
)
from grouprl.types import Prompt

SAMPLING = Sampling(temperature=0.7, max_new_tokens=4, stop=("!",))


@pytest.fixture(scope="module")
def policy():
    return tiny.policy()


@pytest.fixture(scope="module")
def encoded(policy):
    return policy.encode_prompts([Prompt(f"p{i}", f"prompt {i}") for i in range(3)], max_new_tokens=4)


def requests_of(policy, prompts, sampling=SAMPLING, **options):
    return make_requests(
        prompts,
        **{"group_size": 4, "sampling": sampling, "seed": 3, "stream": "train/1", **options},
        stop_ids=policy.stop_ids,
    )


def test_a_request_names_every_parameter(policy, encoded):
    (request, *_) = requests_of(policy, encoded)
    assert request.token_ids == encoded[0].token_ids
    assert request.parameters == {
        "n": 4,
        "seed": group_seed(seed=3, stream="train/1", key="p0"),
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": 4,
        "stop": ["!"],
        "stop_token_ids": [1],
        "ignore_eos": True,
        "skip_special_tokens": True,
        "logprobs": 0,
    }


def test_greedy_asks_for_one_completion_and_makes_a_group_of_it(policy, encoded):
    """vLLM refuses n > 1 there; all would be the same."""
    greedy = Sampling(temperature=0.0, top_p=0.5, top_k=3, max_new_tokens=4)
    (request,) = requests_of(policy, encoded[:1], greedy)
    assert (request.parameters["n"], request.parameters["top_p"], request.parameters["top_k"]) == (1, 1.0, 0)
    (group,) = make_groups(
        policy,
        encoded[:1],
        [[Sampled([5, 6], [-0.1, -0.2])]],
        group_size=3,
        sampling=greedy,
        stream="evaluation",
    )
    assert [c.token_ids for c in group.completions] == [(5, 6)] * 3


def test_randomness_hangs_on_seed_stream_prompt_and_how_often_it_came(policy, encoded):
    def seeds(prompts, **options):
        return [r.parameters["seed"] for r in requests_of(policy, prompts, **options)]

    together = seeds(encoded)
    assert seeds(encoded[::-1]) == together[::-1]
    assert seeds(encoded[:1], earlier=encoded[1:]) == together[:1]
    assert seeds(encoded[:1], group_size=2) == together[:1]
    again = seeds([encoded[0], encoded[0]])
    assert again[0] == together[0] != again[1]
    assert seeds(encoded[:1], earlier=encoded[:1]) == again[1:]
    others = seeds(encoded, seed=4) + seeds(encoded, stream="train/2")
    assert len({*together, *others}) == 9
    assert all(0 <= s < 2**62 for s in (*together, *others))


def test_the_groups_of_a_step_draw_from_seeds_that_do_not_overlap():
    """Sample i has the seed of its group plus i, and torch's CPU generator takes the lower 32 bits. In a step of 512
    prompts × 16 the expected number of overlaps is 512²/2 · 2·16 / 2^32 = 0.001."""
    firsts = sorted(group_seed(seed=0, stream="train/1", key=f"arithmetic/{i}") % 2**32 for i in range(512))
    assert min(b - a for a, b in itertools.pairwise(firsts)) > 16


@pytest.mark.parametrize(
    ("sampling", "mode"),
    [
        (Sampling(temperature=1.0), RAW),
        (Sampling(temperature=1.0, top_p=0.9, top_k=20), RAW),
        (Sampling(temperature=0.0), RAW),
        (Sampling(temperature=0.7), PROCESSED),
        (Sampling(temperature=1.3), PROCESSED),
    ],
)
def test_which_logprobs_are_over_the_full_vocabulary(sampling, mode):
    assert logprobs_mode(sampling) == mode


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 5}])
def test_logprobs_that_vllm_does_not_have_are_refused(cut):
    with pytest.raises(ConfigError, match=r"temperature = 0\.7 with top_[pk] = .*take engine = 'local'"):
        logprobs_mode(Sampling(temperature=0.7, **cut))


def test_texts_masks_and_reasons_are_those_of_the_local_engine(policy, encoded):
    """Cut before a stop string; "stop" by an end token even where it is the last that was allowed; special tokens are
    not text."""

    def tokens(text):
        return list(policy.encode(text))

    sampled = [
        [
            Sampled(tokens("ab!"), [-1.0, -2.0, -3.0]),
            Sampled([*tokens("abc"), 1], [-1.0] * 4),
            Sampled(tokens("abcd"), [-1.0] * 4),
            Sampled([1], [-0.5]),
        ]
    ]
    (group,) = make_groups(
        policy, encoded[:1], sampled, group_size=4, sampling=SAMPLING, stream="train/1", first=7
    )
    assert group.group_id == "train/1/7"
    assert group.prompt_token_ids == encoded[0].token_ids
    assert [c.text for c in group.completions] == ["ab", "abc", "abcd", ""]
    assert [c.finish_reason for c in group.completions] == ["stop", "stop", "length", "stop"]
    assert [len(c.token_ids) for c in group.completions] == [3, 4, 4, 1]
    assert all(all(c.loss_mask) for c in group.completions)
    assert group.completions[0].logprobs == (-1.0, -2.0, -3.0)


@pytest.mark.parametrize(
    ("sampled", "match"),
    [
        ([Sampled([], [])] * 4, "has no tokens"),
        ([Sampled([5], [math.nan])] * 4, "log-probs that are not finite"),
        ([Sampled([5], [-math.inf])] * 4, "log-probs that are not finite"),
        ([Sampled([5], [-1.0])] * 3, "3 completions for prompt 'p0', expected 4"),
    ],
)
def test_what_is_no_completion_is_refused(policy, encoded, sampled, match):
    with pytest.raises(RolloutError, match=match):
        make_groups(policy, encoded[:1], [sampled], group_size=4, sampling=SAMPLING, stream="s")
