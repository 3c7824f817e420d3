"""The demo over several seeds: its score, its steps, its time, and evaluation's share of that.

    python benchmarks/demo.py                                   # seeds 1 to 5, one after another
    python benchmarks/demo.py --seeds 1 evaluation.source=training
    python benchmarks/demo.py --write                           # benchmarks/results/demo.json

Every run is `accelerate launch … demos/demo_online_distributed.py seed=SEED` on two ranks, alone on
the machine. Shares are those of the main rank's time from the first step to the last evaluation:
`evaluation` is fitness and confirmation, `waiting` for the other rank. Seconds are all of it, the
start and the held-out score included. LunarLander counts as solved at 200.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from evorl.runs import Estimate

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "demo.json"
SOLVED = 200.0
LAUNCH = [
    *(sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0"),
    *("--config_file", str(HERE.parent / "configs" / "accelerate" / "cpu.yaml")),
]
DEMO = str(HERE.parent / "demos" / "demo_online_distributed.py")


def run(seed: int, folder: Path, overrides: tuple[str, ...]) -> dict[str, Any]:
    """One run, and what came of it."""
    name = f"demo-{seed}"
    options = [f"seed={seed}", f"name={name}", f"run.folder={folder}", *overrides]
    environment = os.environ | {"ACCELERATE_USE_CPU": "true"}
    begun = time.perf_counter()
    subprocess.run(
        [*LAUNCH, DEMO, *options], check=True, env=environment, stdout=subprocess.DEVNULL
    )
    seconds = time.perf_counter() - begun
    summary = json.loads((folder / name / "summary.json").read_text())
    lines = (folder / name / "metrics.jsonl").read_text().splitlines()
    shares = json.loads(lines[-1])["shares"]
    return {
        "score": summary["score"]["mean"],
        "env_steps": summary["env_steps"],
        "evaluation_steps": summary["evaluation_steps"],
        "generations": len(lines),
        "seconds": round(seconds, 1),
        "evaluation": shares.get("evaluate", 0.0),
        "waiting": shares.get("wait", 0.0),
    }


def row(seed: int, found: dict[str, Any]) -> str:
    """A line of the table."""
    score = Estimate(*(found["score"][name] for name in Estimate._fields))
    value, interval = score.texts()
    solved = "yes" if score.value >= SOLVED else "no"
    return (
        f"| {seed} | {value} ({interval}) | {solved}"
        f" | {found['env_steps']:,} | {found['evaluation_steps']:,} | {found['seconds']:.0f}"
        f" | {100 * found['evaluation']:.0f} % | {100 * found['waiting']:.0f} % |"
    )


@click.command()
@click.argument("overrides", nargs=-1, metavar="[SECTION.KEY=VALUE]...")
@click.option("--seeds", default="1,2,3,4,5", show_default=True)
@click.option("--folder", type=Path, help="Keep the run directories there.")
@click.option("--write", is_flag=True, help="Keep the figures.")
def main(overrides: tuple[str, ...], seeds: str, folder: Path | None, write: bool) -> None:
    """Run the demo."""
    print(
        "| seed | held-out mean (95 % interval) | solved | training steps | evaluation steps |",
        end="",
    )
    print(" seconds | evaluation | waiting |\n" + "| --- " * 8 + "|", flush=True)
    rows: dict[str, Any] = {}
    with TemporaryDirectory() as temporary:
        for seed in map(int, seeds.split(",")):
            found = rows[str(seed)] = run(seed, (folder or Path(temporary)).absolute(), overrides)
            print(row(seed, found), flush=True)
            if write:
                content = {"overrides": overrides, "runs": rows}
                RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    solved = sum(found["score"]["value"] >= SOLVED for found in rows.values())
    seconds = [found["seconds"] for found in rows.values()]
    print(f"\nsolved {solved} of {len(rows)}, {sum(seconds) / len(seconds):.0f} s on average")


if __name__ == "__main__":
    main()
