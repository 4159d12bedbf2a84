"""What dynamic sampling puts where: prompts in order, groups in place, sizes that every rank can share."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
import torch

from grouprl.errors import ConfigError, RunError
from grouprl.integrations.refilling import PromptStream, Row, Sampled, put_in_place, round_size


def drawn(stream, count):
    return [prompt for _, prompt in stream.draw(count)]


def test_every_epoch_visits_each_prompt_once():
    stream = PromptStream(list("abcdefg"), seed=3)
    epochs = [[prompt for _ in range(7) for prompt in drawn(stream, 1)] for _ in range(3)]
    assert all(sorted(epoch) == list("abcdefg") for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_the_order_is_that_of_the_seed_however_it_is_drawn():
    at_once, singly = PromptStream(range(10), seed=1), PromptStream(range(10), seed=1)
    assert drawn(at_once, 25) == [p for _ in range(25) for p in drawn(singly, 1)]
    assert drawn(PromptStream(range(10), seed=2), 10) != drawn(PromptStream(range(10), seed=1), 10)


def test_no_prompt_is_lost_that_is_given_back():
    stream = PromptStream(range(12), seed=0)
    used: list[int] = []
    while len(used) < 12:
        batch = stream.draw(5)
        used += [prompt for _, prompt in batch[:3]]
        stream.give_back(batch[3:])
    assert Counter(used) == Counter(range(12))


def test_a_stream_goes_on_from_its_state():
    first = PromptStream(range(9), seed=5)
    batch = first.draw(4)
    first.give_back(batch[2:])
    second = PromptStream(range(9), seed=5)
    second.load_state(first.state())
    assert second.draw(12) == first.draw(12)


@pytest.mark.parametrize("dataset", [[], iter("abc")])
def test_a_data_set_that_cannot_be_drawn_from_is_refused(dataset):
    with pytest.raises(ConfigError, match="max_sampling_rounds: the data set is empty or a stream"):
        PromptStream(dataset, seed=0)


def test_a_round_is_the_smallest_that_ranks_can_share():
    for wanted, size, ranks in product(range(1, 7), range(1, 7), range(1, 7)):
        found = round_size(wanted, size, ranks)
        fitting = (n for n in range(wanted, wanted + ranks + 1) if n * size % ranks == 0)
        assert found == next(fitting)


def sampled(rewards, tokens, *, prefix, extra=None):
    """Completions of given tokens; prompt i is [prefix + i], padded to different widths."""
    width = max(map(len, tokens))
    ids = torch.tensor([t + [0] * (width - len(t)) for t in tokens])
    mask = torch.tensor([[1] * len(t) + [0] * (width - len(t)) for t in tokens])
    prompts = torch.tensor([[0] * prefix + [prefix + i] for i in range(len(tokens))])
    tensors = {
        "prompt_ids": prompts,
        "prompt_mask": (prompts > 0).long(),
        "completion_ids": ids,
        "completion_mask": mask,
        "old_per_token_logps": -ids.float(),
        "advantages": torch.zeros(len(tokens)),
        "num_items_in_batch": mask.sum(),
        **(extra or {}),
    }
    rows = [Row(f"p{prefix + i}", f"{prefix + i}", tuple(t)) for i, t in enumerate(tokens)]
    logs = {("prompt",): [f"p{prefix + i}" for i in range(len(tokens))]}
    return Sampled(tensors, rows, torch.tensor(rewards).unsqueeze(1), logs)


def test_a_group_is_replaced_whole():
    batch = sampled([1.0, 1.0, 0.0, 1.0], [[1], [2, 3], [4], [5]], prefix=1)
    fresh = sampled([0.0, 0.0, 2.0, 3.0], [[6], [7], [8, 8, 8, 8], [9]], prefix=3)
    found = put_in_place(batch, fresh, {0: 1}, group_size=2, rank=0, pad_id=99)
    assert found.rewards_per_func[:, 0].tolist() == [2.0, 3.0, 0.0, 1.0]
    assert [row.token_ids for row in found.rows] == [(8, 8, 8, 8), (9,), (4,), (5,)]
    assert found.logs["prompt",] == ["p5", "p6", "p3", "p4"]
    assert found.tensors["completion_ids"].tolist() == [[8] * 4, [9, 0, 0, 0], [4, 0, 99, 99], [5, 0, 99, 99]]
    assert found.tensors["completion_mask"].tolist() == [[1] * 4, [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]
    assert found.tensors["prompt_ids"].tolist() == [
        [0, 0, 0, 5],
        [0, 0, 0, 6],
        [99, 99, 0, 3],
        [99, 99, 0, 4],
    ]
    assert found.tensors["prompt_mask"].tolist() == [[0, 0, 0, 1]] * 4
    assert found.tensors["old_per_token_logps"][0].tolist() == [-8.0] * 4
    assert batch.tensors["completion_ids"].tolist() == [[1, 0], [2, 3], [4, 0], [5, 0]]


def test_images_are_refused():
    batch = sampled([1.0, 1.0], [[1], [2]], prefix=1, extra={"pixel_values": torch.zeros(2, 3)})
    fresh = sampled([0.0, 1.0], [[1], [2]], prefix=1, extra={"pixel_values": torch.zeros(2, 3)})
    with pytest.raises(RunError, match="a batch holds pixel_values, expected text alone"):
        put_in_place(batch, fresh, {0: 0}, group_size=2, rank=0, pad_id=0)
