"""The vocabulary: what comes from the sampler stays as it was sampled."""

import pickle

import pytest
import tiny

from grouprl.errors import GrouprlError, InputError
from grouprl.policy import build_rows
from grouprl.types import Completion


@pytest.mark.parametrize(("ids", "logprobs", "mask"), [(2, 3, 2), (3, 2, 3), (2, 2, 3)])
def test_lengths_that_differ_are_refused_not_filled(ids, logprobs, mask):
    """Three sampled log-probs for two re-encoded tokens: neither shifted by one nor filled with 0 (probability 1)."""
    with pytest.raises(InputError, match=f"{ids} token_ids, {logprobs} logprobs and {mask} loss_mask"):
        Completion((1,) * ids, (-0.5,) * logprobs, (True,) * mask, "", "stop")
    assert issubclass(InputError, ValueError)
    assert issubclass(InputError, GrouprlError)


def test_tokens_are_trained_as_sampled_whatever_the_text_says():
    """Decoding loses a special token, and encoding the text again would give other ids: neither is done."""
    tok = tiny.tokenizer()
    sampled = [0, *tok("ab", add_special_tokens=False)["input_ids"], 1]
    text = tok.decode(sampled, skip_special_tokens=True)
    assert tok(text, add_special_tokens=False)["input_ids"] != sampled
    group = tiny.group([5], [sampled])
    rows = build_rows([[(0, group, group.completions[0])]], pad_id=1, share_prefix=True)
    assert rows.target.tolist() == sampled


def test_a_group_can_be_sent_to_another_process():
    group = tiny.group([5], [[6, 7], [8]])
    assert pickle.loads(pickle.dumps(group)) == group
