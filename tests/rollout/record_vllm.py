"""Records what vLLM's server answers, for tests without it: run by hand in an environment that has vLLM.

python tests/rollout/record_vllm.py
"""

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import tiny

from grouprl.rollout import Sampling
from grouprl.rollout.vllm_options import VllmOptions
from grouprl.rollout.vllm_requests import make_requests
from grouprl.rollout.vllm_server import VllmServerEngine
from grouprl.types import Prompt

EXTRA = ("--enforce-eager", "--kv-cache-memory-bytes=268435456")
"""Without compilation, and with a small cache: made for a tiny model."""
KEPT = ("model_config", "weight_transfer_config", "parallel_config", "device_config", "scheduler_config")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        policy = tiny.served(Path(folder) / "model")
        options = VllmOptions(
            str(Path(folder) / "model"), "float32", "raw_logprobs", 64, cpu=True, extra=EXTRA
        )
        engine = VllmServerEngine(policy, options, log=Path(folder) / "log")
        engine.take_weights(policy)
        (request,) = make_requests(
            policy.encode_prompts([Prompt("p", "7 + 15?")], max_new_tokens=6),
            group_size=2,
            sampling=Sampling(max_new_tokens=6),
            seed=0,
            stream="train/1",
            stop_ids=policy.stop_ids,
        )
        body = {
            **request.parameters,
            "prompt": list(request.token_ids),
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        client = engine._client
        info = client.server_info()
        recorded = {
            "version": client.call("GET", "/version"),
            "request": body,
            "completions": client.call("POST", "/v1/completions", body),
            "weight_info": client.call("GET", "/weight_info"),
            "reset_prefix_cache": client.call("POST", "/reset_prefix_cache", {}),
            "server_info": {"vllm_config": {name: plain(info[name]) for name in KEPT}},
        }
        engine.close()
    target = Path(__file__).parent / "recorded" / "vllm.json"
    target.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")


def plain(table):
    """Without what is a long text, or names a folder of this machine."""
    return {
        k: v
        for k, v in table.items()
        if isinstance(v, int | float | bool | None) or (isinstance(v, str) and "/" not in v and len(v) < 60)
    }


if __name__ == "__main__":
    main()
