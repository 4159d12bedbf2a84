"""Calls one framework's own writer of rollouts, in that framework's environment.

python parity/rollouts.py NAME FOLDER

FOLDER is emptied, and holds then what the writer wrote, and made_by.json.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import platform
import shutil
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


def main(name: str, folder: Path) -> None:
    writer = importlib.import_module(f"writers.{name}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    made_by = {
        "framework": writer.DISTRIBUTION,
        "version": importlib.metadata.version(writer.DISTRIBUTION),
        "python": platform.python_version(),
        "writers": writer.write(folder),
    }
    (folder / "made_by.json").write_text(json.dumps(made_by, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1], Path(sys.argv[2]))
