"""vLLM on the quickstart's rollout beside grouprl's own engine: tokens a second, and the hand-over of weights.

    python benchmarks/rollout_vllm.py [--prompts 8] [--group-size 8] [--tokens 16] [--passes 5]

The bundled model in float32 and bfloat16, each engine in a process of its own, in the environment in which
`make integrations` tests vLLM, which the first call makes and tests. A second is one of the clock, and beside it one of
the processor where the engine is in the process: on a machine with other work compare the latter.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
ENVIRONMENTS = ROOT / "tests" / "integrations" / "environments.py"
PYTHON = ROOT / ".parity" / "integration-vllm" / "bin" / "python"
INSIDE = "--inside"
ENGINES = ("local", "vllm", "vllm_server")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--engines", nargs="*", default=ENGINES, choices=ENGINES)
    parser.add_argument("--dtypes", nargs="*", default=("float32", "bfloat16"))
    given = parser.parse_args()
    if not (PYTHON.parent.parent / "installed").exists():
        subprocess.run([sys.executable, ENVIRONMENTS, "vllm"], check=True)
    for dtype in given.dtypes:
        for engine in given.engines:
            job = json.dumps({**vars(given), "engine": engine, "dtype": dtype})
            subprocess.run([PYTHON, __file__, INSIDE, job], check=True)


def inside(job: dict[str, Any]) -> None:
    """One engine, in this process."""
    from grouprl.policy import load_policy
    from grouprl.rollout import Sampling
    from grouprl.tasks import arithmetic

    policy = load_policy(device="cpu")
    sampling = Sampling(max_new_tokens=job["tokens"])
    prompts = policy.encode_prompts(arithmetic().train[: job["prompts"]], max_new_tokens=job["tokens"])
    start = time.perf_counter()
    engine = make(job, policy, prompts)
    loading = time.perf_counter() - start
    rates, processor, hand_overs = [], [], []
    for number in range(job["passes"] + 1):  # one to warm up
        start = time.perf_counter()
        engine.take_weights(policy)
        hand_overs.append(time.perf_counter() - start)
        start, cpu = time.perf_counter(), time.process_time()
        groups = engine.generate(
            prompts, group_size=job["group_size"], sampling=sampling, seed=number, stream="benchmark"
        )
        tokens = sum(len(c.token_ids) for g in groups for c in g.completions)
        rates.append(tokens / (time.perf_counter() - start))
        processor.append(tokens / (time.process_time() - cpu))
    engine.close()
    of_processor = (
        "" if job["engine"] == "vllm_server" else f", {_spread(processor[1:])} a second of processor"
    )
    print(
        f"{job['engine']} {job['dtype']}: {_spread(rates[1:])} tokens/s{of_processor}; "
        f"hand-over {statistics.median(hand_overs[1:]):.2f} s; start {loading:.0f} s",
        flush=True,
    )


def make(job: dict[str, Any], policy: Any, prompts: Any) -> Any:
    from grouprl.training import config_from_dict
    from grouprl.training.engines import make_engine

    config = config_from_dict(
        {
            "rollout": {
                "engine": job["engine"],
                "sampler_dtype": job["dtype"],
                "max_new_tokens": job["tokens"],
            },
            "vllm": {"vllm_args": ["--kv-cache-memory-bytes=1073741824"]},
        }
    )
    return make_engine(config, policy, Path(tempfile.mkdtemp()), prompts=prompts)


def _spread(rates: list[float]) -> str:
    return f"{statistics.median(rates):.0f} ({min(rates):.0f}–{max(rates):.0f})"


if __name__ == "__main__":
    if sys.argv[1:2] == [INSIDE]:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        inside(json.loads(sys.argv[2]))
    else:
        main()
