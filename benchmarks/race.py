"""Would fewer episodes do? What a race for the selection would save, and change.

    python benchmarks/evaluation.py --race

Trains what `evorl init` writes for three environments, and asks at the end of every generation what
its selection would have been with fewer episodes: for all agents, or in a race, where agents play
in waves and one stops when nothing hangs on its other episodes any more. What these may bring is
drawn from those played, as from a normal distribution (mean and covariance unknown: paired
differences are Student's t). `95 %`: its part in the selection is the same in so many draws.
`worth`: the selection is expected to lose next to nothing without them.

What a selection is worth is said by 50 further episodes: by how much parents are better than those
whose places their children get, and how good the best agent is, in standard deviations between the
agents. All 60 are dealt out several times. Steps are those of a whole evaluation, with the race for
the champion; seconds are those of playing for fitness, on one core.

Legend: P agents, n episodes played, m to play, B draws.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch

import evorl
from evorl import pipeline
from evorl.config import RunConfig
from evorl.pipeline import Played, TrainingContext, play
from evorl.seeding import generator, integers

STARTERS = ("CartPole-v1", "Acrobot-v1", "LunarLander-v3")
DRAWS = 200  # of what an agent's other episodes may bring
CERTAIN = 0.95  # share of them in which its part in the selection must be the same
LOSS = 0.05  # what they may be worth, in standard errors of a paired difference of all episodes
FEWER = (5, 7, 8, 9)  # or as many for all agents
FURTHER, REPEATS = 50, 8  # further episodes, and how often all are dealt out
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Chosen = tuple[Ints, int]  # the parents [P], and who is the best
Select = Callable[[Floats], Chosen]


class Observed(pipeline.Evaluate):
    """Evaluate, and note what fewer episodes would have come to."""

    config: RunConfig  # of the run
    rows: list[dict[str, Any]]  # a row for each generation

    def __call__(self, context: TrainingContext) -> None:
        """The run goes on as if nobody had looked."""
        super().__call__(context)
        if not self.population.alive.all():
            return
        seeds = integers(self.seed, "evaluation", context.generation, count=self.count)
        seeds += integers(self.seed, "worth", context.generation, count=FURTHER)
        pool = play(self.population, self.episodes, seeds, self.max_steps)
        own, answers = np.arange(self.count), []
        for repeat in range(REPEATS):
            random = generator(self.seed, "race", context.generation, repeat)
            which = random.permutation(len(seeds)) if repeat else np.arange(len(seeds))
            few = Played(pool.returns[:, which[own]], pool.lengths[:, which[own]])
            worth = pool.returns[:, which[self.count :]].mean(1)
            select = partial(self.select, seed=int(random.integers(2**32)))
            counts = {f"{n} for all": np.full(len(worth), n) for n in FEWER}
            for way, (waves, settled) in RACES.items():
                counts[way] = race(few.returns, waves, settled, select, random)
            answers.append(changes(few, worth, counts, select))
            if not repeat:
                seconds = {way: self.seconds(seeds, way, count) for way, count in counts.items()}
                steps = int(few.lengths.sum())
        rows = {way: np.mean([each[way] for each in answers], axis=0).tolist() for way in counts}
        whole = self.seconds(seeds, "all", np.full(len(worth), self.count))
        share = {way: own / whole for way, own in seconds.items()}
        self.rows.append({"steps": steps, "changes": rows, "seconds": share})

    def seconds(self, seeds: list[int], way: str, counts: Ints) -> float:
        """Of playing; a wave begins when the one before is over."""
        population, everybody, begin = self.population, self.population.alive, 0
        start = process_time()
        for end in (*RACES.get(way, ((),))[0], counts.max()):
            population.alive = counts > begin
            play(population, self.episodes, seeds[begin:end], self.max_steps)
            begin = end
        population.alive = everybody
        return process_time() - start

    def select(self, returns: Floats, seed: int) -> Chosen:
        """What the run's own selection makes of returns [P, n]."""
        alive = np.ones(len(returns), bool)
        parents = self.config.evolution.selection(returns[None], alive, generator(seed, "select"))
        return parents, int(returns.mean(1).argmax())


def changes(
    played: Played, worth: Floats, counts: dict[str, Ints], select: Select
) -> dict[str, list[float]]:
    """For each way: steps, and whether parents or the best are others, and what that is worth."""
    everything = select(played.returns)
    spread = max(float(worth.std()), 1e-9)
    found = {}
    for way, count in counts.items():
        stopped = np.arange(played.returns.shape[1]) >= count[:, None]
        chosen = select(imputed(np.where(stopped, np.nan, played.returns)))
        found[way] = [
            float(played.lengths[~stopped].sum() / played.lengths.sum()),
            float((chosen[0] != everything[0]).any()),
            float(chosen[1] != everything[1]),
            float(value(worth, chosen) - value(worth, everything)) / spread,
        ]
    return found


def value(worth: Floats, chosen: Chosen) -> float:
    """What children gain over those that they replace, and how good the best agent is."""
    parents, best = chosen
    return float((worth[parents] - worth).sum() + worth[best])


def race(
    returns: Floats,
    waves: Sequence[int],
    settled: Callable[..., Bools],
    select: Select,
    random: np.random.Generator,
) -> Ints:
    """How many of the episodes each agent plays, who stops after a wave when it is settled."""
    counts = np.full(len(returns), returns.shape[1])
    for end in waves:
        known = imputed(np.where(np.arange(end) >= counts[:, None], np.nan, returns[:, :end]))
        drawn = draws(known, returns.shape[1] - end, random)
        everything = np.concatenate([np.broadcast_to(known, (DRAWS, *known.shape)), drawn], axis=2)
        alike = (known[:, None] == known).all(-1).sum(1) > 1
        stops = settled(everything, end, select) & ~alike & (counts > end)
        counts[stops] = end
        if (counts <= end).all():
            break
    return counts


def certain(everything: Floats, played: int, select: Select) -> Bools:
    """Whose part is the same in nearly all draws: whose child it is, its children, and the best."""
    parts: list[dict[Any, int]] = [{} for _ in everything[0]]
    for returns in everything:
        parents, best = select(returns)
        for agent, found in enumerate(parts):
            part = (parents[agent], *np.flatnonzero(parents == agent), agent == best)
            found[part] = found.get(part, 0) + 1
    share = np.array([max(found.values()) for found in parts]) / len(everything)
    return np.asarray(share >= CERTAIN)


def worthless(everything: Floats, played: int, select: Select) -> Bools:
    """By whose further episodes the selection is expected to gain next to nothing."""
    worths = everything.mean(2)
    best = [value(worth, select(own)) for own, worth in zip(everything, worths, strict=True)]
    known = everything[0, :, :played]
    pairs = [own - other for i, own in enumerate(known) for other in known[:i]]
    error = np.sqrt(np.var(pairs, axis=1, ddof=1).mean() / everything.shape[2])
    gains = []
    for agent in range(len(known)):
        blind = everything.copy()
        blind[:, agent, played:] = np.nan
        blind = np.array([imputed(own) for own in blind])
        found = [value(worth, select(own)) for own, worth in zip(blind, worths, strict=True)]
        gains.append(np.mean(best) - np.mean(found))
    return np.asarray(np.array(gains) < LOSS * error)


def draws(returns: Floats, left: int, random: np.random.Generator) -> Floats:
    """What m further episodes may bring [B, P, m], by returns [P, n]."""
    n = returns.shape[1]
    mean = returns.mean(1, keepdims=True)
    tails = np.sqrt((n - 1) / random.chisquare(n - 1, size=(DRAWS, 1, 1)))
    episode = random.standard_normal((DRAWS, n, left))
    unknown = random.standard_normal((DRAWS, n, 1)) / np.sqrt(n)  # the mean
    drawn: Floats = mean + tails * ((returns - mean) / np.sqrt(n - 1) @ (episode + unknown))
    return drawn


def imputed(returns: Floats) -> Floats:
    """Where an agent has stopped: its mean, and by how much the others' returns differ there."""
    returns = returns[:, ~np.isnan(returns).all(0)]
    found, stopped = returns.copy(), np.isnan(returns).any(1)
    others = returns[~stopped].mean(0)
    for agent in np.flatnonzero(stopped):
        gone = np.isnan(returns[agent])
        shift = returns[agent, ~gone].mean() - others[~gone].mean()
        found[agent, gone] = others[gone] + shift
    return found


RACES: dict[str, Any] = {  # the waves after which agents are judged, and how
    "race, 95 %": ((5,), certain),
    "race, worth": ((4, 7), worthless),
}


def observe(env_id: str, seed: int, overrides: tuple[str, ...]) -> dict[str, Any]:
    """What a run of `evorl init` with its default settings shows, generation by generation."""
    with TemporaryDirectory() as folder, mock.patch.object(pipeline, "Evaluate", Observed):
        file = Path(folder) / "starter.yaml"
        subprocess.run([sys.executable, "-m", "evorl", "init", env_id, "-o", str(file)], check=True)
        own = [f"seed={seed}", f"run.folder={folder}", "compile=false", "budget.stop_at=null"]
        Observed.config, Observed.rows = evorl.load_config(file, [*own, *overrides]), []
        torch.set_num_threads(1)
        result = evorl.train(Observed.config)
        assert result is not None
        metrics = (result.directory / "metrics.jsonl").read_text().splitlines()
        steps = json.loads(metrics[-1])["evaluation_steps"]
        return {"evaluation_steps": steps, "generations": Observed.rows}


def race_table(rows: dict[str, dict[str, Any]]) -> list[str]:
    """What each way to play fewer episodes saves, and what it changes."""
    head = ("environment", "episodes", "steps", "seconds", "other parents", "other best", "worth")
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for env_id in STARTERS:
        runs = [found for key, found in rows.items() if key.split()[:2] == [env_id, "race"]]
        generations = [row for run in runs for row in run["generations"]]
        for way in generations[0]["changes"] if generations else ():
            found = np.array([row["changes"][way] for row in generations])
            _, parents, best, worth = found.mean(0)
            error = found[:, 3].std() / len(found) ** 0.5
            saved = sum(row["steps"] * (1 - row["changes"][way][0]) for row in generations)
            saved /= sum(run["evaluation_steps"] for run in runs)
            seconds = np.mean([row["seconds"][way] for row in generations])
            lines.append(
                f"| {env_id} | {way} | {-saved:.0%} | {seconds - 1:+.0%} | {parents:.0%} |"
                f" {best:.0%} | {worth:+.3f} ± {error:.3f} |"
            )
    return lines
