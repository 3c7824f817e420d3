"""The digits of nine runs: held-out scores and hashes, to show that a redesign changes nothing.

    python benchmarks/digits.py                       # compare with benchmarks/results/digits.json
    python benchmarks/digits.py --write               # write that file instead
    python benchmarks/digits.py --only cartpole_1,data_2

A hash covers what was computed and not how it is written down: `metrics` every line of
metrics.jsonl without times, `lineage` every line of lineage.jsonl, `weights` the best agent's
tensors. About 25 minutes on two idle cores.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from safetensors import safe_open

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "digits.json"
TRAIN = [sys.executable, "-m", "evorl", "train", "-q"]
RANKS = [
    sys.executable,
    "-m",
    "accelerate.commands.launch",
    "--config_file",
    str(HERE.parent / "configs/accelerate/cpu.yaml"),
]
CARTPOLE = "configs/dqn/cartpole.yaml"
EVERYTHING = [
    "replay.kind=prioritized",
    "algorithm.n_step=3",
    "network.dueling=true",
    "network.layer_norm=true",
    "population.size=6",
    "population.init=sample",
    "evaluation.every=1000",
    "budget.env_steps=240000",
    "evolution.selection.fraction=0.5",
    "evolution.selection.min_gap=0.0",
    "evolution.mutation.none=0.1",
    "evolution.mutation.architecture=0.4",
    "evolution.mutation.parameters=0.2",
    "evolution.mutation.activation=0.2",
    "evolution.mutation.hyperparameters=0.3",
    "evolution.mutation.new_layer=0.5",
]
RUNS = {
    "demo": [*RANKS, "demos/demo_online_distributed.py"],
    "cartpole_1": [*TRAIN, CARTPOLE, "seed=1"],
    "cartpole_2": [*TRAIN, CARTPOLE, "seed=2"],
    "cartpole_3": [*TRAIN, CARTPOLE, "seed=3"],
    "lunar_lander_compiled": [*TRAIN, "configs/dqn/lunar_lander.yaml", "compile=true"],
    "catch": [*TRAIN, "configs/dqn/catch.yaml"],
    "everything": [*TRAIN, CARTPOLE, *EVERYTHING],
    "data_2": [
        *RANKS,
        *["-m", "evorl", "train", "-q", CARTPOLE, "mesh.data=2", "budget.env_steps=96000"],
    ],
    "resumed": [*TRAIN, CARTPOLE, "seed=4", "replay.share=rank", "budget.env_steps=192000"],
}
APART = ("seconds", "steps_per_second", "shares", "training")  # times, and curves


def digest(values: Any) -> str:
    """A short hash of plain values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The objects of a jsonl file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def plain_genome(genome: dict[str, Any]) -> dict[str, Any]:
    """A genome with the architecture of its only network."""
    if "architectures" in genome:
        (architecture,) = genome["architectures"].values()
        genome = {k: v for k, v in genome.items() if k != "architectures"}
        genome["architecture"] = architecture
    return genome


def plain_metrics(line: dict[str, Any]) -> dict[str, Any]:
    """A line of metrics.jsonl without times, and with the widths of its only network."""
    if isinstance(line["hidden"], dict):
        (hidden,) = line["hidden"].values()
        line = line | {"hidden": hidden}
    return {name: value for name, value in line.items() if name not in APART}


def plain_lineage(line: dict[str, Any]) -> dict[str, Any]:
    """A line of lineage.jsonl."""
    return line | ({"genome": plain_genome(line["genome"])} if "genome" in line else {})


def weights_of(folder: Path) -> list[str]:
    """A hash of each tensor of an agent, whatever it is called."""
    with safe_open(folder / "weights.safetensors", "numpy") as file:
        tensors = [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118 (no mapping)
    return sorted(hashlib.sha256(t.tobytes()).hexdigest()[:16] for t in tensors)


def digits_of(folder: Path) -> dict[str, Any]:
    """What a finished run computed."""
    summary = json.loads((folder / "summary.json").read_text())
    return {
        "score": summary["score"],
        "env_steps": summary["env_steps"],
        "total_steps": summary["total_steps"],
        "metrics": digest([plain_metrics(line) for line in lines_of(folder / "metrics.jsonl")]),
        "lineage": digest([plain_lineage(line) for line in lines_of(folder / "lineage.jsonl")]),
        "weights": digest(weights_of(folder / "best")),
        "seconds": summary["seconds"],
    }


def run(name: str, place: Path) -> Path:
    """One run to its end, the resumed one by way of a kill; its folder."""
    environment = os.environ | {"ACCELERATE_USE_CPU": "true"}
    command = [*RUNS[name], f"run.folder={place}", f"name={name}", "run.if_exists=error"]
    if name != "resumed":
        subprocess.run(command, check=True, cwd=HERE.parent, env=environment)
        return place / name
    process = subprocess.Popen(command, cwd=HERE.parent, env=environment)
    while not (place / name / "checkpoints" / "generation-000003").exists():
        time.sleep(0.05)
    time.sleep(0.5)  # into the next generation
    process.send_signal(signal.SIGKILL)
    process.wait()
    resume = [sys.executable, "-m", "evorl", "resume", str(place / name)]
    subprocess.run(resume, check=True, cwd=HERE.parent, env=environment, stdout=subprocess.DEVNULL)
    return place / name


def main() -> int:
    """Run all of them, and write or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", default=",".join(RUNS))
    parser.add_argument("--keep", type=Path, help="keep the runs in this folder")
    arguments = parser.parse_args()
    place = arguments.keep or Path(tempfile.mkdtemp())
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    differ = 0
    for name in arguments.only.split(","):
        found = digits_of(run(name, place.absolute()))
        if arguments.write:
            known[name] = found
            RESULTS.write_text(json.dumps(known, indent=2) + "\n")
        was = known.get(name, {})
        other = [key for key in found if key != "seconds" and found[key] != was.get(key)]
        differ += bool(other)
        mean = found["score"]["mean"]["value"]
        print(
            f"{name:22} {mean:8.2f} {found['env_steps']:9,} steps {found['seconds']:6.1f} s"
            f" (was {was.get('seconds', 0):.1f}): " + (f"DIFFERENT: {other}" if other else "same"),
            flush=True,
        )
    if not arguments.keep:
        shutil.rmtree(place)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
