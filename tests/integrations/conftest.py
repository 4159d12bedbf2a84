"""The helpers of this folder can be imported by its tests, and are none themselves."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
collect_ignore = [
    "documented.py",
    "environments.py",
    "slime_interface.py",
    "trl_trainers.py",
    "verl_cpu_trainer.py",
]
