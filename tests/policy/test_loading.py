"""Finding a model, and saying so where there is none."""

import pytest
import tiny
import torch

from grouprl.errors import ModelError
from grouprl.policy import load_policy


def test_a_folder_loads_with_dropout_off(tiny_model):
    policy = load_policy(str(tiny_model), device="cpu")
    assert not policy.model.training
    assert policy.model.dtype == torch.float32
    assert policy.prefix_obstacle is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: "/no/such/folder", "there is no such folder"),
        (lambda p: "./missing", "there is no such folder"),
        (lambda p: str(p), "holds no config.json"),
        (lambda p: str(p / "file"), "it is a file"),
        (lambda p: "someone/some-model", "HF_HUB_OFFLINE"),
    ],
)
def test_a_model_that_is_not_there(tmp_path, monkeypatch, make, message):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ModelError, match=message) as caught:
        load_policy(make(tmp_path))
    assert "\n" not in str(caught.value)


def test_damaged_weights(tmp_path):
    folder = tiny.save(tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_policy(str(folder))


def test_a_damaged_config(tmp_path):
    folder = tiny.save(tmp_path / "model")
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_policy(str(folder))
