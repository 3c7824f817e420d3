"""IMPALA's actors and learner against Sample Factory's APPO, on CartPole-v1: speed, time to solve.

    python -m venv peer && peer/bin/pip install sample-factory==2.1.1   # an older Gymnasium's
    python benchmarks/peer.py peer/bin/python                           # about ten minutes
    python benchmarks/peer.py peer/bin/python --write                   # keep the rows as results
    python benchmarks/peer.py --show                                    # what was kept, as a table

Each run has the machine to itself, and they take turns. Ours is one learner and two actors that it
starts (configs/impala/cartpole.yaml, one agent). Sample Factory has as many workers as its example
for CartPole leaves it on this machine, one for each core, with the settings of that example; and
once more with networks, learning rate and unrolls as ours has them. Solved is a mean of at least
475 over the last 100 training episodes, and a run ends there, or after `--seconds`.

Seconds count from the start of the process, imports included, and so does a second figure without
them: from the first message. Frames per second are those from the first message to the end.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, median
from typing import Any

import click

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "peer.json"
SOLVED, EPISODES = 475.0, 100
MARK = "RESULT "
Row = dict[str, Any]

# Runs in Sample Factory's own environment, which has no evorl.
APPO = """
import json, sys, time
import gymnasium
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

def make(name, cfg=None, env_config=None, render_mode=None):
    return gymnasium.make(name, render_mode=render_mode)

def main(began, seconds, solved, episodes, options):
    register_env("CartPole-v1", make)
    parser, cfg = parse_sf_args(argv=options)
    cfg, runner = make_runner(parse_full_cfg(parser, options))
    first, over = [], []
    def heard(runner, message, policy):
        now = time.time()
        if not first:
            first.append((now, sum(runner.env_steps.values())))
        returns = runner.policy_avg_stats.get("reward", [[]])[0]
        reached = len(returns) == episodes and sum(returns) / episodes >= solved
        if not over and (reached or now - began > seconds):
            frames = sum(runner.env_steps.values())
            over.append(None)
            lag = runner.policy_lag[0].get("version_diff_avg", -1.0)
            row = {"solved": reached, "seconds": now - began, "training": now - first[0][0],
                   "frames": frames, "fps": (frames - first[0][1]) / (now - first[0][0]),
                   "lag": float(lag)}
            print("RESULT " + json.dumps(row), flush=True)
            runner.cfg.train_for_env_steps = 0
    runner.register_episodic_stats_handler(heard)
    if runner.init() == ExperimentStatus.SUCCESS:
        runner.run()

if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
"""
EXAMPLE = (
    "--use_rnn=False --num_envs_per_worker=20 --policy_workers_per_policy=2 --recurrence=1"
    " --with_vtrace=False --batch_size=512 --reward_scale=0.1"
)
ALIKE = (
    "--use_rnn=False --num_envs_per_worker=8 --recurrence=1 --rollout=20 --with_vtrace=False"
    " --batch_size=320 --learning_rate=1e-3 --encoder_mlp_layers 64 64 --nonlinearity=tanh"
    " --reward_scale=0.1"
)
COMMON = "--algo=APPO --env=CartPole-v1 --device=cpu --stats_avg=100"
APPOS = {"Sample Factory, its example": EXAMPLE, "Sample Factory, settings like ours": ALIKE}
OURS = "evorl, IMPALA"


def ours(began: float, seconds: float, seed: int) -> Row:
    """In this process, which has just started."""
    from evorl import Save, TrainingContext, World, load_config, make_run, start_run

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        options = [
            *("population.size=1", "mesh.actors=2", "evaluation.every=1000000000"),
            *(f"seed={seed}", f"run.folder={folder}", "budget.env_steps=1000000000000"),
        ]
        config = load_config(str(ROOT / "configs/impala/cartpole.yaml"), options)
        world = World.start(1)
        stack.callback(world.close)
        run = make_run(config, world, stack)
        context, stages = TrainingContext(1), run.stages
        start_run(run, context, Save(world, run.config, run.storage, None, []))
        first, returns, lags = None, deque[float](maxlen=EPISODES), list[int]()
        while True:
            stages.collect(context)
            for message in context.received:
                first = first or (time.time(), context.env_steps)
                lags.append(message.lag)
                returns.extend(message.fields["returns"].tolist())
            solved = len(returns) == EPISODES and fmean(returns) >= SOLVED
            now = time.time()
            if first is not None and (solved or now - began > seconds):
                break
            stages.learn(context)
            context.iteration += 1
        spent = now - first[0]
        return {
            "solved": solved,
            "seconds": now - began,
            "training": spent,
            "frames": context.env_steps,
            "fps": (context.env_steps - first[1]) / spent,
            "lag": fmean(lags),
        }


def run_once(name: str, peer: str, seconds: float, seed: int) -> Row:
    """Start one, and read what it says."""
    with tempfile.TemporaryDirectory() as folder:
        if name == OURS:
            command = [sys.executable, __file__, "--own", str(seed), str(time.time()), str(seconds)]
        else:
            options = f"{COMMON} --seed={seed} --train_dir={folder} {APPOS[name]}".split()
            script = Path(folder) / "appo.py"
            script.write_text(APPO)
            given = json.dumps([time.time(), seconds, SOLVED, EPISODES, options])
            command = [peer, str(script), given]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=folder, check=False, timeout=seconds + 60
        )
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            row: Row = json.loads(line.removeprefix(MARK))
            return {key: round(one, 2) for key, one in row.items()}
    raise SystemExit(f"{name} said no result (exit code {done.returncode}):\n{done.stderr[-3000:]}")


def show(rows: dict[str, dict[str, Row]]) -> None:
    """A line for each candidate: medians over the seeds."""
    print("| | solved | seconds | seconds of training | frames | frames per second | mean lag |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, seeds in rows.items():
        each = list(seeds.values())
        middle = {key: median(row[key] for row in each) for key in each[0]}
        solved = sum(row["solved"] for row in each)
        print(
            f"| {name} | {solved} of {len(each)} | {middle['seconds']:.0f} |"
            f" {middle['training']:.0f} | {middle['frames']:,.0f} | {middle['fps']:,.0f} |"
            f" {middle['lag']:.1f} |"
        )


@click.command()
@click.argument("peer", required=False)
@click.option("--seeds", default="1,2,3", show_default=True, help="Of one run each.")
@click.option("--seconds", default=300.0, show_default=True, help="Of a run, at most.")
@click.option("--write", is_flag=True, help="Keep what every run came to.")
@click.option("--show", "shows", is_flag=True, help="Only print what was kept.")
@click.option("--own", nargs=3, type=float, hidden=True)
def main(
    peer: str | None,
    seeds: str,
    seconds: float,
    write: bool,
    shows: bool,
    own: tuple[float, float, float] | None,
) -> None:
    """Let all of them train, one after another; `PEER` is the Python that has Sample Factory."""
    if own is not None:
        print(MARK + json.dumps(ours(own[1], own[2], int(own[0]))), flush=True)
        return
    if shows:
        show(json.loads(RESULTS.read_text()))
        return
    if peer is None:
        raise click.UsageError("say which Python has Sample Factory: see the top of this file")
    rows: dict[str, dict[str, Row]] = {name: {} for name in (OURS, *APPOS)}
    for seed in seeds.split(","):
        for name, own_rows in rows.items():
            # not resolved: a virtual environment is known by where its link is
            own_rows[seed] = run_once(name, str(Path(peer).absolute()), seconds, int(seed))
            print(f"{name}, seed {seed}: {own_rows[seed]}", flush=True)
    show(rows)
    if write:
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
