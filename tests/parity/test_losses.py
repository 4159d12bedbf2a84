"""What frameworks' own losses gave (`make parity` records it) against what grouprl gives for the same tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from grouprl.objectives import (
    cispo_loss,
    dapo_loss,
    dr_grpo_loss,
    gmpo_loss,
    grpo_loss,
    gspo_loss,
    policy_loss,
    sapo_loss,
)
from grouprl.objectives.correction import sampler_weights
from grouprl.objectives.kl import KL_ESTIMATORS

RECORDED = Path(__file__).parent / "recorded" / "losses"
RECORDS = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RECORDED.glob("*.json"))
}
NAMES = ("logprobs", "old_logprobs", "ref_logprobs", "sampler_logprobs", "advantages")

# Recorded loss → the same one here.
SAME: dict[tuple[str, str], tuple[Any, dict[str, Any]]] = {
    ("trl", "grpo"): (grpo_loss, {}),
    ("trl", "grpo, delta"): (policy_loss, {"dual_clip": 1.3}),
    ("trl", "grpo, beta"): (grpo_loss, {"beta": 0.1}),
    ("trl", "grpo, beta weighted by the ratio"): (grpo_loss, {"beta": 0.1, "kl_weighted": True}),
    ("trl", "bnpo"): (dapo_loss, {}),
    ("trl", "dapo"): (dapo_loss, {}),
    ("trl", "dr_grpo"): (dr_grpo_loss, {"max_tokens": 10}),
    ("trl", "cispo"): (cispo_loss, {}),
    ("trl", "cispo, low"): (cispo_loss, {"clip_high": 0.2}),
    ("trl", "sapo"): (sapo_loss, {}),
    ("trl", "gspo"): (gspo_loss, {}),
    ("trl", "gspo, wide"): (gspo_loss, {"clip_low": 0.1, "clip_high": 0.1}),
    ("trl", "luspo"): (
        policy_loss,
        {"surrogate": "gspo", "clip_low": 0.1, "clip_high": 0.1, "aggregation": "sequence_sum_mean"},
    ),
    ("verl", "vanilla"): (policy_loss, {"aggregation": "token_mean"}),
    ("verl", "vanilla, clip-higher"): (dapo_loss, {}),
    ("verl", "vanilla, dual clip"): (policy_loss, {"aggregation": "token_mean", "dual_clip": 1.3}),
    ("verl", "vanilla, seq-mean-token-mean"): (grpo_loss, {}),
    ("verl", "vanilla, seq-mean-token-sum"): (policy_loss, {"aggregation": "sequence_sum_mean"}),
    ("verl", "vanilla, seq-mean-token-sum-norm"): (dr_grpo_loss, {"max_tokens": 10}),
    ("verl", "vanilla, token weights"): (
        policy_loss,
        {"aggregation": "token_mean", "sampler_logprobs": True, "correction_high": 1.5},
    ),
    ("verl", "gspo"): (gspo_loss, {}),
    ("verl", "gspo, wide"): (gspo_loss, {"clip_low": 0.1, "clip_high": 0.1}),
    ("verl", "sapo"): (sapo_loss, {}),
    ("verl", "cispo"): (cispo_loss, {"clip_low": 0.2, "clip_high": 0.2}),
    ("verl", "geo_mean"): (gmpo_loss, {}),
    ("verl", "reinforce"): (policy_loss, {"surrogate": "reinforce", "aggregation": "sequence_sum_mean"}),
}
VERL_EPSILON = {"rtol": 3e-8, "atol": 0.0}
"""verl adds 1e-8 to the number of a completion's tokens; here some have one."""
TOLERANCES = {
    ("trl", "sapo"): {"rtol": 3e-7, "atol": 0.0},  # its temperatures are rounded to float32
    ("verl", "vanilla, seq-mean-token-mean"): VERL_EPSILON,
    ("verl", "gspo"): VERL_EPSILON,
    ("verl", "gspo, wide"): VERL_EPSILON,
    ("verl", "sapo"): VERL_EPSILON,
    ("verl", "geo_mean"): VERL_EPSILON,
}
KLS = {("verl", name): name for name in ("k1", "k2", "k3")}
WEIGHTS = {
    ("verl", "weights, token"): ("truncated", "token", 0.0, 1.5),
    ("verl", "weights, sequence"): ("truncated", "sequence", 0.0, 1.5),
    ("verl", "weights, token, both bounds"): ("masked", "token", 0.6, 1.5),
    ("verl", "weights, sequence, both bounds"): ("masked", "sequence", 0.2, 3.0),
}


def tensors(framework: str) -> dict[str, torch.Tensor]:
    inputs = RECORDS[framework]["inputs"]
    values = {name: torch.tensor(inputs[name], dtype=torch.float64) for name in NAMES}
    return values | {"completion_mask": torch.tensor(inputs["completion_mask"])}


def recorded(framework: str, name: str) -> dict[str, Any]:
    return RECORDS[framework]["losses"][name]


def identifiers(keys) -> list[str]:
    return [", ".join(key) for key in keys]


@pytest.mark.parametrize(("framework", "name"), SAME, ids=identifiers(SAME))
def test_loss_and_gradient_are_the_frameworks(framework, name):
    function, options = SAME[framework, name]
    given = tensors(framework)
    sampler = given.pop("sampler_logprobs")
    if options.get("sampler_logprobs"):
        options = options | {"sampler_logprobs": sampler}
    if not options.get("beta"):
        given.pop("ref_logprobs")
    given["logprobs"].requires_grad_()
    loss, _ = function(**given, **options)
    loss.backward()
    expected = recorded(framework, name)
    tolerance = TOLERANCES.get((framework, name), {"rtol": 1e-12, "atol": 1e-13})
    torch.testing.assert_close(
        loss.detach(), torch.tensor(expected["loss"], dtype=torch.float64), **tolerance
    )
    gradient = torch.tensor(expected["gradient"], dtype=torch.float64)
    torch.testing.assert_close(given["logprobs"].grad, gradient, **tolerance)


@pytest.mark.parametrize(("framework", "name"), KLS, ids=identifiers(KLS))
def test_kl_estimates_are_the_frameworks(framework, name):
    given = tensors(framework)
    ours = KL_ESTIMATORS[KLS[framework, name]](given["logprobs"] - given["ref_logprobs"])
    theirs = torch.tensor(recorded(framework, name)["values"], dtype=torch.float64)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("framework", "name"), WEIGHTS, ids=identifiers(WEIGHTS))
def test_sampler_weights_are_the_frameworks(framework, name):
    correction, level, low, high = WEIGHTS[framework, name]
    given = tensors(framework)
    mask = given["completion_mask"]
    ours = sampler_weights(
        given["old_logprobs"],
        given["sampler_logprobs"],
        mask,
        correction=correction,
        level=level,
        low=low,
        high=high,
    )
    theirs = torch.tensor(recorded(framework, name)["values"], dtype=torch.float64)
    torch.testing.assert_close(ours.weights * mask, theirs, rtol=1e-12, atol=1e-13)
    assert ours.corrected.any()
    assert not ours.corrected[mask].all()


@pytest.mark.parametrize("framework", RECORDS)
def test_every_recorded_loss_is_compared(framework):
    compared = {name for key in (SAME, KLS, WEIGHTS) for owner, name in key if owner == framework}
    assert compared == RECORDS[framework]["losses"].keys()


def test_the_frameworks_were_given_the_same_tensors_with_ratios_beyond_every_bound():
    first, *others = RECORDS.values()
    assert all(other["inputs"] == first["inputs"] for other in others)
    given = tensors("trl")
    mask, good = given["completion_mask"], given["advantages"][:, None] > 0
    ratio = (given["logprobs"] - given["old_logprobs"]).exp()
    assert (mask & good & (ratio > 1.5)).any()  # e^.4, the widest upper bound
    assert (mask & good & (ratio < 0.7)).any()
    assert (mask & ~good & (ratio < 0.65)).any()  # e^−.4
    assert (mask & ~good & (ratio > 1.3)).any()  # the dual clip
    means = ((ratio.log() * mask).sum(1) / mask.sum(1)).exp()[:, None]
    assert (good & (means > 1.1)).any()
    assert (~good & (means < 0.9)).any()


@pytest.mark.parametrize("framework", RECORDS)
def test_a_record_names_what_made_it(framework):
    record = RECORDS[framework]
    assert record["framework"]
    assert record["version"]
    for loss in record["losses"].values():
        assert "." in loss["path"]
