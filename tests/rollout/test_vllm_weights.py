"""What is handed over: the weights as a checkpoint names them, whole, rounded to the engine's type."""

import pytest
import tiny
import torch
from safetensors.torch import load_file

from grouprl.errors import RolloutError
from grouprl.integrations import vllm as plugin
from grouprl.policy.lora import attach_adapter, merge_adapter
from grouprl.rollout import vllm_weights
from grouprl.rollout.vllm_weights import BACKEND, FileHandOver, TensorHandOver, checkpoint_weights


class Receiver:
    """The other side: what it is told, and what it reads."""

    def __init__(self):
        self.calls, self.folder, self.weights = [], None, {}

    def init_weight_transfer_engine(self, init_info):
        self.calls.append("init")
        self.folder = init_info.get("folder")

    def start_weight_update(self):
        self.calls.append("start")
        self.weights = {}

    def update_weights(self, update_info):
        self.calls.append("update")
        if "file" in update_info:
            path = f"{self.folder}/{update_info['file']}"
            self.weights |= load_file(path)
        else:
            self.weights |= {name: tensor.clone() for name, tensor in update_info["weights"]}

    def finish_weight_update(self, weight_version=None):
        self.calls.append("finish")

    def reset_prefix_cache(self):
        self.calls.append("reset")


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gpt2"])
def test_the_names_and_values_are_those_of_a_saved_model(family, tmp_path):
    policy = tiny.policy(family)
    policy.model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    handed = {name: tensor.clone() for name, tensor in checkpoint_weights(policy)}
    assert handed.keys() == saved.keys()
    assert all(torch.equal(handed[name], saved[name]) for name in saved)


def test_names_that_transformers_changes_as_it_loads_are_changed_back(tmp_path):
    """Experts that it fuses: a checkpoint of Mixtral's has each of them alone."""
    policy = tiny.policy("mixtral", num_local_experts=2, num_experts_per_tok=1)
    policy.model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    own = {name for name, _ in policy.model.named_parameters()}
    assert own != saved.keys(), "this transformers keeps the names: take another model for this test"
    handed = dict(checkpoint_weights(policy))
    assert handed.keys() == saved.keys()
    assert all(torch.equal(handed[name], saved[name]) for name in saved)


def test_tied_weights_are_handed_over_once(tmp_path):
    policy = tiny.policy(tie_word_embeddings=True)
    names = [name for name, _ in checkpoint_weights(policy)]
    assert "lm_head.weight" not in names
    assert "model.embed_tokens.weight" in names


def test_an_adapter_is_added_and_stays_where_it_is():
    policy = tiny.policy()
    attach_adapter(policy.model, rank=2, alpha=4.0)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    handed = {name: tensor.clone() for name, tensor in checkpoint_weights(policy)}
    assert policy.adapted
    merge_adapter(policy.model)
    expected = dict(policy.model.named_parameters())
    assert handed.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(handed[name], tensor, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_files_hold_every_weight_once_and_are_removed(monkeypatch, dtype):
    monkeypatch.setattr(vllm_weights, "PART_BYTES", 10_000)
    policy, receiver, hand_over = tiny.policy(), Receiver(), FileHandOver()
    hand_over.open(receiver, policy, dtype)
    folder = hand_over._folder
    assert folder.stat().st_mode & 0o777 == 0o700
    for _ in range(2):
        hand_over.send(receiver, policy, dtype)
        expected = {name: parameter.to(dtype) for name, parameter in policy.model.named_parameters()}
        assert receiver.weights.keys() == expected.keys()
        assert all(torch.equal(receiver.weights[name], expected[name]) for name in expected)
        assert not list(folder.iterdir())
    assert receiver.calls.count("update") > 4
    assert [c for c in receiver.calls if c != "update"] == ["init", "start", "finish", "start", "finish"]
    hand_over.close()
    assert not folder.exists()
    hand_over.close()


def test_files_are_removed_where_the_other_side_fails():
    policy, receiver, hand_over = tiny.policy(), Receiver(), FileHandOver()
    hand_over.open(receiver, policy, torch.float32)

    def fail(update_info):
        raise RuntimeError("out of memory")

    receiver.update_weights = fail
    with pytest.raises(RuntimeError, match="out of memory"):
        hand_over.send(receiver, policy, torch.float32)
    assert not list(hand_over._folder.iterdir())
    hand_over.close()


def test_nothing_is_sent_before_the_way_is_open():
    with pytest.raises(RolloutError, match="call open first"):
        FileHandOver().send(Receiver(), tiny.policy(), torch.float32)


def test_tensors_are_the_policys_own():
    policy, seen = tiny.policy(), {}
    receiver = Receiver()
    receiver.update_weights = lambda info: seen.update({n: t.data_ptr() for n, t in info["weights"]})
    hand_over = TensorHandOver()
    hand_over.open(receiver, policy, torch.float32)
    hand_over.send(receiver, policy, torch.float32)
    assert seen == {name: p.data_ptr() for name, p in policy.model.named_parameters()}


def test_a_full_shared_memory_is_left_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(vllm_weights, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(vllm_weights, "PART_BYTES", 2**60)
    assert vllm_weights._roomy_folder() is None
    monkeypatch.setattr(vllm_weights, "PART_BYTES", 1)
    assert vllm_weights._roomy_folder() == str(tmp_path)


def test_both_sides_call_the_back_end_by_one_name():
    assert plugin.BACKEND == BACKEND
