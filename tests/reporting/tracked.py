"""Tiny runs that evolve, with trackers or without."""

import json
import os

import torch

from evorl.config import parse_config
from evorl.runs.directory import RunDirectory
from evorl.training.trainer import train

torch.set_num_threads(1)

BASE = {
    "name": "run",
    "env": {"id": "CartPole-v1", "num_envs": 2, "backend": "sync"},
    "algorithm": {"learning_starts": 16, "batch_size": 8, "epsilon_steps": 100},
    "network": {"hidden": [16]},
    "replay": {"capacity": 300},
    "population": {"size": 4},
    "evaluation": {
        "every": 25,
        "episodes": 2,
        "confirm_episodes": 3,
        "final_episodes": 4,
        "max_steps": 40,
        "final_max_steps": 40,
    },
    "evolution": {"selection": {"fraction": 0.5, "min_gap": 0.0}},
    "budget": {"env_steps": 1200},
    "compile": False,
    "tracking": {"timeout": 180},  # the machine may be busy
}
ACTORS = [  # who play within this process
    "algorithm={name: a3c, rollout_steps: 5}",
    "mesh.actors=2",
    "actors={place: inline, lockstep: true}",
]
GENERATIONS = 6  # of 200 steps
OFFLINE = "tracking.wandb=offline"


def tiny(folder, *overrides):
    return parse_config(BASE, [f"run.folder={folder}", *overrides])


def run(folder, *overrides):
    """Train from the beginning; the run's folder."""
    return train(tiny(folder, *overrides)).directory


def resume(path, *overrides):
    directory = RunDirectory(path)
    config = parse_config(directory.config().model_dump(), overrides)
    return train(config, resume=directory).directory


def environment(**values):
    """That of a process of its own: without the service that W&B runs for this one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    return kept | values


def lines(path, name="metrics.jsonl"):
    return [json.loads(line) for line in (path / name).read_text().splitlines()]


def reproducible(path):
    """Every byte of a run that does not depend on time: lineage, best agent, checkpoints."""
    kept = [path / "lineage.jsonl", *(path / "best").iterdir()]
    kept += [file for file in (path / "checkpoints").rglob("*") if file.is_file()]
    return {str(file.relative_to(path)): file.read_bytes() for file in kept}
