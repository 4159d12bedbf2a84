"""Several ranks as one run, on gloo processes: the updates of one process, on replayed completions."""

import math
import os
import signal
from pathlib import Path

import launch
import pytest
import tiny
import torch
import update_ranks
from update_ranks import CASES, STRATEGIES

from grouprl.errors import ConfigError, LostRank, RewardError, RewardUnavailable, RunError
from grouprl.training import config_from_dict, memory
from grouprl.training.interrupts import Interrupted, Interrupts
from grouprl.training.launch import VARIABLES, joined, own_device
from grouprl.training.minibatches import deal, number_members
from grouprl.training.ranks import Failure, Ranks


@pytest.fixture(scope="module")
def alone():
    return {case.name: update_ranks.outcome(case, Ranks()) for case in CASES}


@pytest.fixture(scope="module", params=[2, 4])
def together(request):
    """What the ranks of one world found."""
    return update_ranks.on_ranks(request.param)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_updates_are_those_of_one_process(together, strategy, alone):
    """Also with uneven shares and idle ranks, and where there is no update to make. Every rank has the same bits."""
    ranks = [found[strategy] for found in together]
    for number, case in enumerate(update_ranks.cases(strategy)):
        expected = alone[case.name]
        first = ranks[0][number]
        for found in ranks:
            for name, weight in found[number].weights.items():
                assert torch.equal(weight, first.weights[name]), (case.name, name)
        kept = [found[number].kept for found in ranks]
        if strategy == "fsdp":
            assert sum(kept) == expected.kept, case.name  # each rank its own share, and nobody another's
        else:
            assert kept == [expected.kept] * len(ranks), case.name
        for name, weight in expected.weights.items():
            torch.testing.assert_close(
                first.weights[name], weight, rtol=1e-5, atol=2e-6, msg=f"{case.name}, {name}"
            )
        agree(first.result, expected.result, case.name)
        assert first.penalties == pytest.approx(expected.penalties, abs=1e-5), case.name


def agree(found, expected, name):
    """Losses, metrics and log-probs; what a completion's mean log-prob is None for, too."""
    assert found.metrics.keys() == expected.metrics.keys(), name
    for key, value in expected.metrics.items():
        assert found.metrics[key] == pytest.approx(value, rel=1e-4, abs=2e-6, nan_ok=True), (name, key)
    assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4, nan_ok=True), name
    assert [m is None for m in found.trainer_logprobs_mean] == [
        m is None for m in expected.trainer_logprobs_mean
    ]
    for mine, theirs in zip(found.trainer_logprobs_mean, expected.trainer_logprobs_mean, strict=True):
        assert mine is None or mine == pytest.approx(theirs, abs=1e-5)
    assert (found.updates, found.completions) == (expected.updates, expected.completions), name
    assert found.warnings == expected.warnings, name


def test_the_cases_are_what_they_say(alone):
    named = {name: found.result for name, found in alone.items()}
    assert named["plain"].updates == 1
    assert named["four updates"].updates == 4
    assert named["uneven: a dead group"].completions == 6
    assert named["idle: one completion"].completions == 1
    assert (named["all idle"].completions, named["all idle"].updates) == (0, 1)
    assert named["not a number"].updates == 0
    assert math.isnan(named["not a number"].grad_norm)
    assert named["clipped"].grad_norm > 0.1
    assert "value_loss" in named["critic"].metrics
    assert all(p is not None for p in alone["kl in the reward"].penalties)


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 9, 11])
def test_groups_are_dealt_whole_while_there_are_enough(parts):
    members = number_members(update_ranks.GROUPS)
    shares = deal(members, parts)
    assert len(shares) == parts
    assert sorted(m[0] for share in shares for m in share) == list(range(9))
    assert all([m[0] for m in share] == sorted(m[0] for m in share) for share in shares)
    groups = [{m[1].group_id for m in share} for share in shares]
    if parts <= 3:
        assert sum(map(len, groups)) == 3  # each in one share alone
    assert sum(not share for share in shares) == max(parts - 9, 0)


def test_no_completion_is_dealt_to_nobody():
    assert deal([], 3) == [[], [], []]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_shares_are_contiguous_and_even(count, size):
    shares = [Ranks(rank, size).share(count) for rank in range(size)]
    assert [i for share in shares for i in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.fixture
def interrupts():
    """Those of a rank among several, active."""
    with Interrupts(in_windows=True) as active:
        yield active


def stop():
    os.kill(os.getpid(), signal.SIGTERM)


def test_signals_wait_for_a_window_however_many_come(interrupts):
    stop()
    stop()
    with pytest.raises(Interrupted), interrupts.window():
        pytest.fail("what is inside must not begin")
    with interrupts.window():
        pass  # it was raised, and is done with


def test_in_a_window_a_signal_is_raised_at_once(interrupts):
    with pytest.raises(Interrupted), interrupts.window():
        stop()


def test_no_window_opens_while_weights_change(interrupts):
    with interrupts.deferred():
        with interrupts.window():
            stop()
        stop()
    with pytest.raises(Interrupted), interrupts.window():
        pass


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RewardError("it broke"), RewardError),
        (RewardUnavailable("no answer", scores=[None], failed=1), RewardError),
        (LostRank("gone"), LostRank),
        (OSError(28, "No space left on device"), RunError),
        (SystemExit(3), RunError),
    ],
)
def test_an_error_travels_as_its_own_kind(error, kind):
    told = Failure.of(error).as_error(3)
    assert type(told) is kind
    assert str(told).startswith("rank 3: ")
    assert str(error) in str(told)
    assert told.of_rank == 3


GLOO = "[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:6513"


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError(GLOO), True),
        (
            torch.distributed.DistBackendError(
                "NCCL error in: ProcessGroupNCCL.cpp:94, remote process exited"
            ),
            True,
        ),
        (RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"), False),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (RewardError("the gloo of it"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_a_broken_connection_inside_a_forward_is_a_lost_rank(error, lost):
    """A sharded model's forward is collective: what it raises when another rank dies is torch's own error."""
    ranks = Ranks(0, 2)
    explained = ranks.explained(error)
    assert isinstance(explained, LostRank) == lost
    assert (explained is error) != lost
    assert not ranks.all_raised(explained)
    assert Ranks().explained(error) is error


@pytest.mark.parametrize("name", ["cuda:0", "mps"])
def test_no_two_ranks_share_a_device(name):
    with pytest.raises(
        ConfigError, match=f"device '{name}' on several ranks, expected 'auto', 'cpu' or 'cuda'"
    ):
        own_device(name, 0)


def test_a_rank_without_a_device_is_told_how_many_there_are(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert own_device("cuda", 1) == torch.device("cuda", 1)
    with pytest.raises(ConfigError, match="--nproc-per-node 2"):
        own_device("cuda", 2)


def test_a_process_that_torchrun_did_not_start_is_alone(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with joined(config_from_dict({})) as ranks:
        assert (ranks.rank, ranks.size, ranks.several) == (0, 1, False)
    monkeypatch.setenv("RANK", "0")  # a scheduler's, without the rest
    with joined(config_from_dict({})) as ranks:
        assert not ranks.several


def test_a_rank_that_is_no_number_is_refused(monkeypatch):
    for name in VARIABLES:
        monkeypatch.setenv(name, "one")
    with pytest.raises(ConfigError, match="must be whole numbers"), joined(config_from_dict({})):
        pass


def test_others_that_do_not_come_are_given_up(monkeypatch):
    for name, value in zip(VARIABLES, ("1", "2", "127.0.0.1", "1"), strict=True):
        monkeypatch.setenv(name, value)
    config = config_from_dict({"device": "cpu", "distributed": {"distributed_timeout_s": 1.0}})
    with (
        pytest.raises(RunError, match=r"rank 1 of 2: did not meet the others at 127\.0\.0\.1:1"),
        joined(config),
    ):
        pass


PARTING = """
from pathlib import Path

from grouprl.errors import LostRank
from grouprl.training import config_from_dict
from grouprl.training.launch import joined


def threads():
    return [p.read_text() for p in Path("/proc/self/task").glob("*/comm")].count("pt_gloo_runloop\\n")


before = threads()
with joined(config_from_dict({"device": "cpu"})) as ranks:
    kept = ranks.beside, ranks
    assert [r.each(lambda: 1) for r in kept] == [[1, 1], [1, 1]]
    assert threads() > before
assert threads() == before
for parted in kept:
    try:
        parted.each(lambda: 1)
    except LostRank as error:
        assert "have parted" in str(error)
    else:
        raise AssertionError("an exchange after the end")
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads by Linux's /proc")
def test_no_thread_of_a_connection_outlives_the_ranks(tmp_path):
    """One that does may abort the process when the interpreter ends. (Nothing here imports `torch.distributed.nn` after
    the ranks met, whose default arguments would hold the default group.)"""
    script = tmp_path / "parting.py"
    script.write_text(PARTING)
    done = launch.torchrun_script(2, script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"lora": {"lora_rank": 4, "quantize": "nf4"}}, "lora.quantize is 'nf4', expected 'none'"),
        (
            {"lora": {"lora_rank": 4}, "objective": {"kl_in": "reward", "beta": 0.1}},
            "lora_rank is 4 with objective.kl_in = 'reward', expected 'loss'",
        ),
        ({"optimizer": {"optimizer_kind": "adamw_8bit"}}, "expected 'adamw'"),
        ({"advantage": {"estimator": "gae"}}, "has a critic"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(section, said):
    with pytest.raises(ConfigError, match=said):
        config_from_dict({**section, "distributed": {"strategy": "fsdp"}})
    config_from_dict(section)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_nccl():
    """The same, a CUDA device a rank; with one device one rank."""
    alone = {case.name: update_ranks.outcome(case, Ranks(), device="cuda") for case in CASES}
    first = update_ranks.on_ranks(torch.cuda.device_count(), device="cuda")[0]
    for strategy in STRATEGIES:
        for case, found in zip(update_ranks.cases(strategy), first[strategy], strict=True):
            for name, weight in alone[case.name].weights.items():
                torch.testing.assert_close(
                    found.weights[name], weight, rtol=1e-4, atol=2e-5, msg=f"{strategy}, {case.name}"
                )


def test_what_is_shared_out_leaves_room_for_larger_micro_batches(monkeypatch):
    monkeypatch.setattr(memory, "CHUNK_ELEMENTS", 0)
    monkeypatch.setattr(memory, "saved_bytes", lambda policy: (1000, 0))
    monkeypatch.setattr(memory, "MOST", {"cpu": 10**9})
    monkeypatch.setattr(memory, "free_memory", lambda device: 10**7)
    policy = tiny.policy()
    n, head = sum(p.numel() for p in policy.model.parameters()), policy.head.weight.numel()
    # A fourth of gradient and moments, a float32 copy for the sampler, three fourths of the weights given back.
    expected = 8 * 10**6 - (3 * n + 4 * n - 3 * n + 8 * head)
    found = memory.fit_micro_batch(policy, sampler_bytes=0, slices=4).tokens
    assert found == pytest.approx(expected / 1000, abs=1)
    rounded = memory.fit_micro_batch(policy, sampler_bytes=2, slices=4).tokens
    assert rounded == pytest.approx((expected + 2 * n) / 1000, abs=1)
    shared = memory.fit_micro_batch(policy, sampler_bytes=0, sharers=2).tokens
    assert shared == pytest.approx((4 * 10**6 - 12 * n) / 1000, abs=1)
