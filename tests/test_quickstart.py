"""The main job on the bundled model: held-out accuracy at least doubles and ends at 0.5 or more. Minutes each.

make test-slow
"""

import pytest

import grouprl


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_quickstart_learns(seed, tmp_path):
    run = grouprl.train({"seed": seed, "output_dir": str(tmp_path / "run"), "device": "cpu"})
    before, after = run.evaluations[0], run.evaluations[-1]
    assert before["prompts"] >= 100
    assert after["accuracy"] >= max(0.5, 2 * before["accuracy"])
    assert after["accuracy_low"] > before["accuracy_high"]
    assert max(m["peak_memory_gib"] for m in run.metrics) < 4
