"""The roomy cache: keys and values stay apart, and it holds what transformers' own would hold."""

import torch
from transformers.cache_utils import DynamicLayer

from grouprl.rollout.cache import RoomyLayer


def states(value, rows=2, length=1):
    return torch.full((rows, 1, length, 2), float(value))


def test_repeat_keeps_keys_and_values_apart_and_the_source_unchanged():
    keys = torch.stack([torch.full((1, 3, 2), 1.0), torch.full((1, 3, 2), 2.0)])
    values = keys * 10
    layer = RoomyLayer(room=5)
    layer.update(keys, values)
    layer.batch_repeat_interleave(2)
    assert layer.keys[:, 0, 0, 0].tolist() == [1, 1, 2, 2]
    assert layer.values[:, 0, 0, 0].tolist() == [10, 10, 20, 20]
    layer.update(states(9, rows=4), states(90, rows=4))
    assert keys[:, 0, 0, 0].tolist() == [1, 2]
    assert layer.keys.shape[-2] == 4


def test_it_holds_what_a_dynamic_layer_holds():
    torch.manual_seed(0)
    roomy, own = RoomyLayer(room=7), DynamicLayer()
    for layer in (roomy, own):
        torch.manual_seed(1)
        layer.update(torch.randn(3, 2, 4, 5), torch.randn(3, 2, 4, 5))
        layer.batch_repeat_interleave(2)
        layer.update(torch.randn(6, 2, 1, 5), torch.randn(6, 2, 1, 5))
        layer.batch_select_indices(torch.tensor([0, 3, 5]))
        layer.update(torch.randn(3, 2, 1, 5), torch.randn(3, 2, 1, 5))
    assert torch.equal(roomy.keys, own.keys)
    assert torch.equal(roomy.values, own.values)
    assert roomy.get_seq_length() == own.get_seq_length() == 6


def test_selecting_before_the_first_token():
    layer = RoomyLayer(room=4)
    layer.update(torch.arange(4.0).view(2, 1, 2, 1), torch.arange(4.0).view(2, 1, 2, 1))
    layer.batch_select_indices(torch.tensor([1]))
    assert layer.keys.flatten().tolist() == [2, 3]
