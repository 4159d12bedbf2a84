"""Makes an environment for each framework and runs the tests of its integration there: `make integrations`.

    python tests/integrations/environments.py [NAME ...]

Environments lie in .parity/integration-<name>. One that cannot be made here is named at the end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "parity"))

from run import environment  # noqa: E402  (parity/run.py, which makes the environments of `make parity`)

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}


def main(names: list[str]) -> int:
    known = tomllib.loads((HERE / "environments.toml").read_text(encoding="utf-8"))
    failed = {}
    for name in names or known:
        about = known[name]
        print(f"{name}: {' '.join(about['alone'])}", flush=True)
        try:
            python = environment(
                f"integration-{name}",
                about["alone"],
                [
                    *(
                        ["--constraint", str(ROOT / "constraints.txt")]
                        if about.get("constrained", True)
                        else []
                    ),
                    "--editable",
                    f"{ROOT}[{about['extras']}]",
                    *about["needs"],
                ],
                about.get("python"),
            )
        except (subprocess.CalledProcessError, LookupError) as error:
            failed[name] = f"its environment was not made: {error}"
            continue
        tests = HERE / f"test_{name}.py"
        done = subprocess.run([python, "-m", "pytest", tests], cwd=ROOT, env=os.environ | ONE_THREAD)
        if done.returncode:
            failed[name] = f"tests failed, exit code {done.returncode}"
    for name, why in failed.items():
        print(f"{name}: {why}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
