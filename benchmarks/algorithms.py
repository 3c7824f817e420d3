"""Updates by autograd of a whole population against the same agents one after another, one thread.

    python benchmarks/algorithms.py           # about four minutes, most of it compiling
    python benchmarks/algorithms.py --json    # for machines
    python benchmarks/algorithms.py --eager   # without compiling, a minute
    python benchmarks/algorithms.py --only sac --write   # one of them; keep the figures

Agents of 64-64, batch 128 (PPO: minibatches of 256), eager and compiled. Before anything is timed
both sides make one round from the same weights on the same batches, and must end with the same
weights. They take turns; a ratio is the median over the turns, so that noise hits both alike. The
last line says `all bars met`, or which are not. `--write` keeps the figures in
benchmarks/results/algorithms.json.

Legend: P agents, U updates of a round, B batch.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from plain_agents import PLAIN
from throughput import Figure
from timing import seconds_by_turn
from torch import Tensor

from evorl import DDPG, PPO, SAC, TD3, ActionSpec, Architecture, Genome, NetworkSpec, Population
from evorl.experience import RolloutBatch, SampleRequest, Samples

OBS, ROUND = 8, 8
AGENT = Architecture((64, 64))
BOX = ActionSpec("continuous", None, (2,), np.dtype(np.float32))
CHOICE = ActionSpec("discrete", 4)
CLOSE = 100.0  # between the weights of both sides after a round, in millionths: float32
RESULTS = Path(__file__).parent / "results" / "algorithms.json"

Bars = dict[str, float]  # times faster, by way


class Contest(NamedTuple):
    """An algorithm, the actions it takes, and its bars by number of agents."""

    algorithm: Any
    action: ActionSpec
    bars: dict[int, Bars]


REPLAYED = {4: {"eager": 2.5, "compiled": 5.0}, 16: {"eager": 3.5, "compiled": 6.0}}
CONTESTS = {
    "ddpg": Contest(DDPG(batch_size=128), BOX, REPLAYED),
    "td3": Contest(TD3(batch_size=128), BOX, REPLAYED),
    "sac": Contest(SAC(batch_size=128), BOX, REPLAYED),
    "ppo": Contest(PPO(batch_size=256), CHOICE, {16: {"eager": 3.0, "compiled": 4.5}}),
}


def population_of(contest: Contest, size: int, compiled: bool) -> Population:
    """Agents that are alike but for their weights."""
    algorithm = contest.algorithm
    networks = algorithm.networks(NetworkSpec(OBS, 0), contest.action)
    named = {n: AGENT for n, own in networks.items() if isinstance(own.spec, NetworkSpec)}
    genomes = [Genome(i, named, algorithm.hyperparameters) for i in range(size)]
    return Population(genomes, networks, algorithm, compiled=compiled)


def replayed(contest: Contest, count: int) -> Samples:
    """So many samples of a replay."""
    return Samples(
        obs=torch.randn(count, OBS),
        action=torch.rand(count, *contest.action.shape) * 2 - 1,
        rewards=torch.randn(count, 1),
        next_obs=torch.randn(count, OBS),
        bootstrap=torch.ones(count, dtype=torch.uint8),
        weight=torch.full((count,), 1 / contest.algorithm.batch_size),
        slots=torch.zeros(count, dtype=torch.int64),
        noise=torch.randn(count, contest.algorithm.loss_noise(contest.action)),
    )


def rolled_out(contest: Contest, count: int) -> RolloutBatch:
    """So many samples of rollouts."""
    choices = contest.action.choices[0]
    return RolloutBatch(
        obs=torch.randn(count, OBS),
        action=torch.randint(choices, (count,)),
        log_prob=torch.randn(count) * 0.1 - float(np.log(choices)),
        advantage=torch.randn(count),
        returns=torch.randn(count),
        weight=torch.full((count,), 1 / contest.algorithm.batch_size),
    )


def plain_fields(samples: Samples | RolloutBatch) -> tuple[Tensor, ...]:
    """What a plain agent's update reads, of all samples."""
    if isinstance(samples, RolloutBatch):
        return samples[:-1]
    reward = samples.rewards[:, 0]
    return (samples.obs, samples.action, reward, samples.next_obs, samples.noise)


class Sides:
    """The same agents and batches in a population, in another that is compiled, and alone."""

    def __init__(self, contest: Contest, size: int, ways: Sequence[str]) -> None:
        torch.manual_seed(size)
        self.populations = {
            way: population_of(contest, size, compiled=way == "compiled") for way in ways
        }
        first = next(iter(self.populations.values()))
        self.requests: list[SampleRequest] = first.requests(np.full(size, ROUND))
        (shape,) = (request.shape for request in self.requests)  # alike, so in one matrix
        make = rolled_out if contest.algorithm.name == "ppo" else replayed
        self.samples = make(contest, prod(shape))
        fields = [own.view(*shape, *own.shape[1:]) for own in plain_fields(self.samples)]
        self.batches = [[[own[u, i] for own in fields] for u in range(ROUND)] for i in range(size)]
        kind = PLAIN[contest.algorithm.name]
        self.alone: list[Any] = [
            kind(contest.algorithm, first.specs, AGENT, first.state(i)) for i in range(size)
        ]

    def together(self, way: str) -> None:
        """A round of a population."""
        self.populations[way].learn(self.samples, self.requests)

    def one_by_one(self) -> None:
        """The same work, one agent after another."""
        for agent, batches in zip(self.alone, self.batches, strict=True):
            for batch in batches:
                agent.update(*batch)

    def difference(self, way: str) -> float:
        """The largest between the weights of an agent alone and in the population."""
        own = self.populations[way]
        return max(agent.difference(own.state(i)) for i, agent in enumerate(self.alone))


def updates(contest: Contest, ways: Sequence[str]) -> Iterator[Figure]:
    """Check that all sides compute the same, and measure them."""
    for size, bars in contest.bars.items():
        sides = Sides(contest, size, ways)
        candidates: dict[str, Callable[[], object]] = {"one by one": sides.one_by_one}
        candidates |= {way: partial(sides.together, way) for way in ways}
        for run in candidates.values():
            run()
        name = f"{contest.algorithm.name}, {size} agents"
        for way in ways:
            apart = 1e6 * sides.difference(way)
            yield Figure(f"{name}: {way}, weights apart in 1e-6", apart, "", CLOSE, most=True)
        turns = seconds_by_turn(candidates, calls=max(1, 16 // size), turns=15)
        for way, spent in turns.items():
            per = 1e6 * statistics.median(spent) / ROUND / size
            yield Figure(f"{name}: {way}, per agent and update", per, " µs")
        for way in ways:
            each = zip(turns["one by one"], turns[way], strict=True)
            ratio = statistics.median(alone / spent for alone, spent in each)
            yield Figure(f"{name}: {way}, times faster", ratio, "×", bars[way])


def main() -> None:
    """Measure all algorithms, and judge."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--eager", action="store_true", help="leave out what must be compiled")
    parser.add_argument("--only", choices=CONTESTS, nargs="+", help="some algorithms")
    parser.add_argument("--write", action="store_true", help="keep the figures as results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ways = ["eager"] if options.eager else ["eager", "compiled"]
    figures: list[Figure] = []
    for name in options.only or CONTESTS:
        for figure in updates(CONTESTS[name], ways):
            figures.append(figure)
            if not options.json:
                print(figure.line(), flush=True)
    missed = [figure.name for figure in figures if not figure.met]
    verdict = "all bars met" if not missed else "not met: " + "; ".join(missed)
    told = [figure._asdict() | {"met": figure.met} for figure in figures]
    found = json.dumps({"figures": told, "verdict": verdict}, indent=2, ensure_ascii=False)
    if options.write:
        RESULTS.write_text(found + "\n")
    print(found if options.json else verdict)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
