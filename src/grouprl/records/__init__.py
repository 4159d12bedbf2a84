"""What a run leaves on disk: its folder, its logs, its rollouts, and how each survives a kill."""

from grouprl.records.files import atomic_dir, atomic_write
from grouprl.records.jsonl import append_jsonl, plain, read_jsonl
from grouprl.records.lock import RunLock
from grouprl.records.reading import read, source
from grouprl.records.rollouts import (
    SCHEMA_VERSION,
    rollout_rows,
    rollout_schema,
    scan_rollouts,
    write_rollouts,
)
from grouprl.records.run import RunFolder
from grouprl.records.sources import Source

__all__ = [
    "SCHEMA_VERSION",
    "RunFolder",
    "RunLock",
    "Source",
    "append_jsonl",
    "atomic_dir",
    "atomic_write",
    "plain",
    "read",
    "read_jsonl",
    "rollout_rows",
    "rollout_schema",
    "scan_rollouts",
    "source",
    "write_rollouts",
]
