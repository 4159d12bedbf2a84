"""Prompts to tokens, and what ends a completion."""

import pytest
import tiny

from grouprl.errors import ModelError
from grouprl.policy import Policy
from grouprl.types import Prompt

CHAT = Prompt("p", ({"role": "user", "content": "hi"},))


def encode(policy, prompt, **options):
    return policy.encode_prompts([prompt], max_new_tokens=4, **options)[0]


@pytest.mark.parametrize(
    ("adds_bos", "template", "expected"),
    [
        (True, "<bos>" + tiny.TEMPLATE, 1),  # the template has it: no second one
        (True, tiny.TEMPLATE, 1),  # the template lacks it, the tokenizer puts one: it is not lost
        (False, "<bos>" + tiny.TEMPLATE, 1),
        (False, tiny.TEMPLATE, 0),  # a model without BOS gets none
    ],
)
def test_exactly_one_bos(adds_bos, template, expected):
    base = tiny.policy()
    policy = Policy(base.model, tiny.tokenizer(adds_bos=adds_bos, template=template))
    for prompt in (CHAT, Prompt("t", "plain text")):
        ids = encode(policy, prompt).token_ids
        assert ids.count(2) == (expected if prompt is CHAT else int(adds_bos))
        assert 2 not in ids[1:]


def test_chat_template_keywords_pass_through():
    policy = tiny.policy()
    assert encode(policy, CHAT).text.endswith("assistant\n")
    assert encode(policy, CHAT, template={"enable_thinking": True}).text.endswith("<think>")


def test_plain_text_gets_no_template():
    assert encode(tiny.policy(), Prompt("t", "2+2=")).text == "2+2="


def test_every_stop_id_of_the_generation_config_counts():
    policy = tiny.policy()
    policy.model.generation_config.eos_token_id = [0, 7]
    assert policy.stop_ids == (0, 1, 7)
    policy.model.generation_config.eos_token_id = None
    assert policy.stop_ids == (1,)


def test_a_prompt_longer_than_the_context_is_refused():
    with pytest.raises(
        ModelError, match=r"prompt 'long': 300 tokens and 4 new ones, but the context .* is 256"
    ):
        encode(tiny.policy(), Prompt("long", "x" * 300))


def test_a_conversation_without_a_template_is_refused():
    policy = Policy(tiny.policy().model, tiny.tokenizer(template=None))
    with pytest.raises(ModelError, match="has no chat template; give prompts as plain text"):
        encode(policy, CHAT)


def test_an_empty_prompt_is_refused():
    with pytest.raises(ModelError, match="it has no tokens"):
        encode(tiny.policy(), Prompt("e", ""))
