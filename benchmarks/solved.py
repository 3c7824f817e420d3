"""How many episodes of each actor it takes until CartPole-v0 is solved, by an exacting criterion.

    accelerate launch --config_file configs/accelerate/cpu.yaml --num_processes 4 \\
        benchmarks/solved.py configs/impala/cartpole_v0.yaml mesh.data=2   # 2 learners, 2 actors
    python benchmarks/solved.py configs/a3c/cartpole_v0.yaml             # 1 learner; 2 children
    python benchmarks/solved.py configs/impala/cartpole_v0.yaml --lockstep algorithm.updates=4
    python benchmarks/solved.py --show                                   # what was kept, as a table

The criterion is that of Machin's tutorial on distributed algorithms: the return of an actor's
episodes, smoothed as 0.9 of what it was and 0.1 of the new one, is above 190 of 200 five times
running. It begins at 0, so that 33 perfect episodes are needed at least. Frames and updates stand
beside the episodes, which for themselves measure above all how often each is learned from. With a
population every agent is by itself, and none evolves.

Actors at their own pace depend on time: the same seed gives other figures. With `--lockstep`, all
in one process, it gives the same. `--write` keeps the rows in benchmarks/results/solved.json.
"""

import json
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from evorl import RunConfig, Save, TrainingContext, World, load_config, make_run, start_run
from evorl.training import start_world
from evorl.training.actor_setup import act_as_rank

SOLVED, REPEATED, SMOOTHING = 190.0, 5, 0.9
RESULTS = Path(__file__).parent / "results" / "solved.json"
ENDLESS = ("evaluation.every=1000000000",)  # no generation ends
LOCKSTEP = ("actors.place=inline", "actors.lockstep=true")
Row = dict[str, Any]


class Criterion:
    """Follows the episodes that every agent's actors have played."""

    def __init__(self, agents: int, actors: int) -> None:
        self.smoothed = np.zeros((agents, actors))
        self.episodes, self.repeated = np.zeros((2, agents, actors), np.int64)

    def take(self, actor: int, returns: Sequence[npt.NDArray[np.float64]]) -> None:
        """Each agent's episodes that have ended with this actor, in order."""
        for agent, totals in enumerate(returns):
            for total in totals:
                if self.after[agent]:
                    break
                kept = SMOOTHING * self.smoothed[agent, actor]
                self.smoothed[agent, actor] = kept + (1 - SMOOTHING) * total
                above = self.smoothed[agent, actor] > SOLVED
                self.repeated[agent, actor] = above * (self.repeated[agent, actor] + 1)
                self.episodes[agent, actor] += 1

    @property
    def after(self) -> npt.NDArray[np.int64]:
        """After how many episodes of an actor each agent had solved it, [P]; 0: it has not."""
        found: npt.NDArray[np.int64] = np.where(self.repeated >= REPEATED, self.episodes, 0).max(1)
        return found


def solve(config: RunConfig, world: World, most: int) -> list[Row]:
    """Train until all agents have solved it, or an actor has played `most` episodes."""
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        where = config.run.model_copy(update={"folder": folder})
        run = make_run(config.model_copy(update={"run": where}), world, stack)
        size, stages = run.parts.population.size, run.stages
        context, rows, lags = TrainingContext(size), dict[int, Row](), list[int]()
        start_run(run, context, Save(world, run.config, run.storage, None, []))
        criterion = Criterion(size, config.mesh.actors // world.trainers.size)
        begun = time.perf_counter()
        while len(rows) < size:
            stages.anneal(context)
            stages.collect(context)
            for message in context.received:
                lags.append(message.lag)
                ends = np.cumsum(message.fields["returned"].numpy())[:-1]
                criterion.take(message.slot, np.split(message.fields["returns"].numpy(), ends))
            after = world.max_over_replicas(criterion.after)  # it is one learner's actor
            played = world.max_over_replicas(criterion.episodes.max(1))
            for agent in np.flatnonzero((after > 0) | (played >= most)).tolist():
                if agent not in rows:
                    rows[agent] = {
                        "episodes": int(after[agent]) or None,
                        "frames": int(context.agent_steps[agent]),
                        "updates": run.parts.population.state(agent).updates,
                        "seconds": round(time.perf_counter() - begun, 1),
                        "lag": round(fmean(lags), 1),
                    }
            stages.learn(context)
            context.iteration += 1
    return [rows[agent] for agent in range(size)]


def line(who: str, row: Row) -> str:
    """A row for people."""
    episodes = row["episodes"] or "not solved"
    return (
        f"{who}: {episodes} episodes of an actor, {row['frames']:,} frames,"
        f" {row['updates']:,} updates, mean lag {row['lag']}, {row['seconds']} s"
    )


def summary(rows: Sequence[Row]) -> str:
    """Episodes of all runs; one that was not solved counts as endless."""
    episodes = [row["episodes"] or float("inf") for row in rows]
    return f"median {median(episodes):.0f}, at most {max(episodes)}"


def keep(name: str, seed: int, row: Row) -> None:
    """Add a run to the results."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known.setdefault(name, {})[str(seed)] = row
    RESULTS.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


def show() -> None:
    """The table of what was kept."""
    print("| run | episodes of an actor | median | most | frames | updates | mean lag | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, rows in json.loads(RESULTS.read_text()).items():
        each = [rows[seed] for seed in sorted(rows, key=int)]
        episodes = [row["episodes"] for row in each]
        middle = (f"{median(row[key] for row in each):,.0f}" for key in ("frames", "updates"))
        lag, seconds = (median(row[key] for row in each) for key in ("lag", "seconds"))
        print(
            f"| {name} | {', '.join(map(str, episodes))} | {median(episodes):.0f} |"
            f" {max(episodes)} | {' | '.join(middle)} | {lag:.1f} | {seconds:.0f} |"
        )


@click.command()
@click.argument("path", required=False)
@click.argument("overrides", nargs=-1)
@click.option("--seeds", default="1,2,3,4,5", show_default=True, help="Of one run each.")
@click.option("--most", default=1500, show_default=True, help="Episodes of an actor, at most.")
@click.option("--lockstep", is_flag=True, help="All in one process, in lock-step.")
@click.option("--write", is_flag=True, help="Keep what every run came to.")
def main(
    path: str | None, overrides: tuple[str, ...], seeds: str, most: int, lockstep: bool, write: bool
) -> None:
    """Print a line for each seed, and the median; or, without a configuration, what was kept."""
    if path is None:
        show()
        return
    warnings.filterwarnings("ignore", message=".*out of date")  # CartPole-v0 is
    world, rows = None, []
    given = [*overrides, *ENDLESS, *(LOCKSTEP if lockstep else ())]
    for seed in map(int, seeds.split(",")):
        config = load_config(path, [*given, f"seed={seed}"])
        world = world or start_world(config)
        if world.acts:
            act_as_rank(config, world)
            continue
        found = solve(config, world, most)
        for agent, row in enumerate(found if world.main else []):
            who = f"seed {seed}" + (f", agent {agent}" if len(found) > 1 else "")
            print(line(who, row), flush=True)
            rows.append(row)
        if write and world.main:
            kind = "/".join(Path(path).with_suffix("").parts[-2:])
            learners = world.trainers.size
            what = f"{learners} learner{'s' * (learners > 1)}, {config.mesh.actors} actors"
            keep(f"`{kind}`, {'lock-step' if lockstep else what}", seed, found[0])
    if rows:
        print(summary(rows))
    if world is not None:
        world.close()


if __name__ == "__main__":
    main()
