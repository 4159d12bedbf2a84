"""Moments that were written in slices, read as whole ones: on one process, whose slices are whole."""

import pytest
import tiny
import torch
from updates import config

from grouprl.training.moments import load_moments, save_moments
from grouprl.training.optimizer import make_optimizer


@pytest.fixture
def world(tmp_path):
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def trained(steps):
    """A policy and its optimizer after some steps on a made-up gradient."""
    policy = tiny.policy()
    optimizer = make_optimizer(policy, config().optimizer)
    for _ in range(steps):
        for parameter in policy.parameters():
            parameter.grad = parameter.detach() ** 2
        optimizer.step()
    return policy, optimizer


def test_moments_come_back(world, tmp_path):
    policy, optimizer = trained(steps=3)
    save_moments(tmp_path / "moments", policy, optimizer)
    other, fresh = trained(steps=0)
    load_moments(tmp_path / "moments", other, fresh)
    mine, theirs = optimizer.state_dict()["state"], fresh.state_dict()["state"]
    assert mine.keys() == theirs.keys()
    for i, state in mine.items():
        assert state.keys() == theirs[i].keys()
        for key, value in state.items():
            assert torch.equal(value, theirs[i][key]), key
    assert theirs[0]["step"] == 3


def test_before_the_first_update_there_are_none(world, tmp_path):
    policy, optimizer = trained(steps=0)
    save_moments(tmp_path / "moments", policy, optimizer)
    load_moments(tmp_path / "moments", policy, optimizer)
    assert not optimizer.state_dict()["state"]


def test_those_of_another_model_are_refused(world, tmp_path):
    save_moments(tmp_path / "moments", *trained(steps=1))
    other = tiny.policy(intermediate_size=64)
    with pytest.raises((RuntimeError, ValueError, AssertionError)):
        load_moments(tmp_path / "moments", other, make_optimizer(other, config().optimizer))


def test_a_folder_that_cannot_be_written_is_an_os_error(world, tmp_path):
    (tmp_path / "moments").write_text("in the way")
    with pytest.raises(OSError, match="moments"):
        save_moments(tmp_path / "moments", *trained(steps=1))
