"""The models and batches whose stages are measured, and which of them the fit sees."""

from __future__ import annotations

from dataclasses import replace

from cost_model import SMOLLM2, Batch, ModelShape

THIN = ModelShape(
    "thin", layers=4, hidden=64, intermediate=128, heads=2, kv_heads=1, head_dim=32, vocabulary=1024
)
WIDE = ModelShape(
    "wide", layers=4, hidden=1536, intermediate=4096, heads=24, kv_heads=8, head_dim=64, vocabulary=8192
)
MIDDLE = ModelShape(
    "middle", layers=12, hidden=768, intermediate=2048, heads=12, kv_heads=4, head_dim=64, vocabulary=32768
)
SHAPES = {
    shape.name: shape
    for shape in (SMOLLM2, THIN, replace(THIN, name="thin and deep", layers=24), WIDE, MIDDLE)
}

BASE = Batch(prompts=2, G=8, prompt_tokens=46, completion_tokens=16)
POINTS: tuple[tuple[str, Batch, bool], ...] = (
    ("SmolLM2-135M", BASE, True),
    ("SmolLM2-135M", replace(BASE, prompts=1, G=2), True),
    ("SmolLM2-135M", replace(BASE, G=32), True),
    ("SmolLM2-135M", replace(BASE, prompt_tokens=258), True),
    ("SmolLM2-135M", replace(BASE, completion_tokens=48), True),
    ("SmolLM2-135M", replace(BASE, G=4, completion_tokens=128), True),
    ("thin", BASE, True),
    ("thin", replace(BASE, G=32, completion_tokens=48), True),
    ("thin and deep", BASE, True),
    ("wide", BASE, True),
    ("wide", replace(BASE, prompts=1, G=2), True),
    ("wide", replace(BASE, prompt_tokens=258, G=4), True),
    ("SmolLM2-135M", replace(BASE, prompts=4, G=4, prompt_tokens=128, completion_tokens=32), False),
    ("SmolLM2-135M", replace(BASE, prompts=8), False),
    ("SmolLM2-135M", replace(BASE, prompts=1, G=8, prompt_tokens=517), False),
    ("middle", BASE, False),
    ("middle", replace(BASE, prompts=4, prompt_tokens=128, completion_tokens=32), False),
    ("wide", replace(BASE, G=16, completion_tokens=48), False),
    ("thin and deep", replace(BASE, prompts=8, prompt_tokens=200), False),
)
"""Model, batch, and whether the fit sees it: the others are held out."""
