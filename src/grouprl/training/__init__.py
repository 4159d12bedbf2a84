"""The training run: configuration, loop, evaluation, checkpoints."""

from grouprl.training.checkpoint import final_model_step
from grouprl.training.config import Config, config_from_dict, config_to_toml, read_config, sampling_of
from grouprl.training.evaluation import Evaluation, evaluate
from grouprl.training.events import Listener
from grouprl.training.interrupts import Interrupted
from grouprl.training.loading import load_task
from grouprl.training.run import Run, resume, train

__all__ = [
    "Config",
    "Evaluation",
    "Interrupted",
    "Listener",
    "Run",
    "config_from_dict",
    "config_to_toml",
    "evaluate",
    "final_model_step",
    "load_task",
    "read_config",
    "resume",
    "sampling_of",
    "train",
]
