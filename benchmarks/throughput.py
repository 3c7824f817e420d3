"""How fast evorl is, as ratios measured in one run, on one thread.

    python benchmarks/throughput.py           # about three minutes, half of it compiling
    python benchmarks/throughput.py --json    # for machines
    python benchmarks/throughput.py --eager   # without compiling, a minute

Every figure has a bar; the last line says `all bars met`, or which are not.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from lander import ENVS, LanderLoop
from plain import PlainAgent
from timing import best_seconds, seconds_by_turn
from tqdm import tqdm

from evorl import DQN, ActionSpec, Architecture, Genome, NetworkSpec, Population
from evorl.experience import SampleRequest, Samples

INPUTS, ACTIONS, BATCH, ROUND = 8, 4, 128, 8
SMALL = Architecture((32, 32))


class Figure(NamedTuple):
    """One measured figure and what it should be."""

    name: str
    value: float
    unit: str
    bar: float | None = None  # at least, or at most where `most` is set
    most: bool = False

    @property
    def met(self) -> bool:
        """Whether the bar is met; without one, it is."""
        if self.bar is None:
            return True
        return self.value <= self.bar if self.most else self.value >= self.bar

    def line(self) -> str:
        """The figure for a person."""
        bar = ""
        if self.bar is not None:
            word = "at most" if self.most else "at least"
            bar = f"{word} {self.bar:g}{self.unit:5} {'met' if self.met else 'NOT MET'}"
        return f"{self.name:66} {self.value:9.2f}{self.unit:6} {bar}"


def population_of(architectures: Sequence[Architecture], compiled: bool = False) -> Population:
    """Agents that differ in architecture only."""
    dqn = DQN(batch_size=BATCH)
    networks = dqn.networks(NetworkSpec(INPUTS, 0), ActionSpec("discrete", ACTIONS))
    genomes = [Genome(i, {"q": a}, dqn.hyperparameters) for i, a in enumerate(architectures)]
    return Population(genomes, networks, dqn, compiled=compiled)


def random_samples(requests: Sequence[SampleRequest]) -> Samples:
    """A round's batches for a population."""
    count = sum(int(np.prod(request.shape)) for request in requests)
    return Samples(
        obs=torch.randn(count, INPUTS),
        action=torch.randint(ACTIONS, (count,)),
        rewards=torch.randn(count, 1),
        next_obs=torch.randn(count, INPUTS),
        bootstrap=torch.ones(count, dtype=torch.uint8),
        weight=torch.full((count,), 1 / BATCH),
        slots=torch.zeros(count, dtype=torch.int64),
        noise=torch.zeros(count, 0),
    )


def round_of(population: Population) -> Callable[[], object]:
    """One round of updates of all agents."""
    requests = population.requests(np.full(population.size, ROUND))
    return partial(population.learn, random_samples(requests), requests)


def plain_round_of(architectures: Sequence[Architecture]) -> Callable[[], object]:
    """The same work, one agent after another."""
    agents = [PlainAgent(INPUTS, ACTIONS, architecture) for architecture in architectures]
    batch = (
        torch.randn(BATCH, INPUTS),
        torch.randint(ACTIONS, (BATCH,)),
        torch.randn(BATCH),
        torch.randn(BATCH, INPUTS),
    )

    def run() -> None:
        for agent in agents:
            for _ in range(ROUND):
                agent.update(*batch)

    return run


def against_plain(
    name: str, architectures: Sequence[Architecture], bars: dict[str, float]
) -> list[Figure]:
    """Eager and compiled updates of a population against the plain loop."""
    candidates = {"plain": plain_round_of(architectures)}
    for way in bars:
        candidates[way] = round_of(population_of(architectures, compiled=way == "compiled"))
    seconds = best_seconds(candidates, calls=3)
    per = {way: 1e6 * spent / ROUND / len(architectures) for way, spent in seconds.items()}
    figures = [Figure(f"{name}: plain loop", per["plain"], " µs")]
    for way, bar in bars.items():
        figures.append(Figure(f"{name}: {way}", per[way], " µs"))
        figures.append(Figure(f"{name}: {way}, times faster", per["plain"] / per[way], "×", bar))
    return figures


def mixed(size: int, activations: Sequence[Any]) -> list[Architecture]:
    """Widths 16 to 128 and depths 1 to 3 in turn, the same for everyone who measures."""
    widths, depths = (16, 24, 32, 48, 64, 96, 128), (1, 2, 3)
    return [
        Architecture(
            (widths[i % len(widths)],) * depths[i % len(depths)], activations[i % len(activations)]
        )
        for i in range(size)
    ]


def updates(ways: Sequence[str]) -> list[Figure]:
    """Agents alike: MLP 8-32-32-4, batch 128."""
    bars = {4: {"eager": 5, "compiled": 10}, 16: {"eager": 8, "compiled": 14}}
    figures = []
    for size, goals in bars.items():
        wanted = {way: goals[way] for way in ways}
        figures += against_plain(f"update, {size} agents alike", [SMALL] * size, wanted)
    return figures


def mixed_updates(ways: Sequence[str]) -> list[Figure]:
    """Agents of all sizes, with one activation and with three."""
    bars = {8: {"eager": 2, "compiled": 3.5}, 16: {"eager": 3, "compiled": 5}}
    figures = []
    for size, goals in bars.items():
        wanted = {way: goals[way] for way in ways}
        figures += against_plain(f"update, {size} mixed agents", mixed(size, ["relu"]), wanted)
    for size in bars:
        agents = mixed(size, ["relu", "tanh", "gelu"])
        name = f"update, {size} mixed agents, 3 activations"
        figures += against_plain(name, agents, {"eager": 1})
    return figures


def graphs(generations: int = 10) -> list[Figure]:
    """Programs compiled while architectures mutate at random, generation by generation."""
    random = np.random.default_rng(0)
    hidden = [[32, 32] for _ in range(8)]
    population = population_of([SMALL] * 8, compiled=True)
    torch._dynamo.utils.counters.clear()
    kinds = set()
    for _ in tqdm(range(generations), desc="mutating", disable=None, leave=False):
        for own in hidden:
            if random.random() < 0.5:
                mutate(own, random)
        fresh = population_of([Architecture(tuple(own)) for own in hidden])
        population.rebuild(fresh.genomes, [fresh.state(i) for i in range(8)])
        kinds |= {kind.signatures for kind in population.kinds}
        round_of(population)()
    count = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return [
        Figure(f"kinds of group seen in {generations} generations of mutations", len(kinds), ""),
        Figure("graphs compiled for them", count, "", bar=10, most=True),
    ]


def mutate(hidden: list[int], random: np.random.Generator) -> None:
    """Add or remove a layer, or a few units."""
    choice = random.integers(5)
    if choice == 0 and len(hidden) < 3:
        hidden.append(hidden[-1])
    elif choice == 1 and len(hidden) > 1:
        hidden.pop()
    else:
        place = random.integers(len(hidden))
        hidden[place] = int(np.clip(hidden[place] + random.choice([-16, -8, 8, 16]), 16, 64))


def loops() -> list[Figure]:
    """The whole training loop against the sum of its bare parts, and what the loader costs."""
    figures = []
    for size in (4, 16):
        loop = LanderLoop(size, BATCH)
        parts = loop.parts()
        candidates = {"loop": loop.round, "loader": loop.load, **parts}
        turns = seconds_by_turn(candidates, calls=20)
        loop.close()
        seconds = {part: statistics.median(spent) for part, spent in turns.items()}
        shares, name = loop.context.timer.shares(), f"LunarLander loop, {size} agents"
        # turn by turn: the best turns of the parts together would be a loop that never was
        whole = zip(*(turns[part] for part in parts), strict=True)
        ratios = [sum(bare) / loop for bare, loop in zip(whole, turns["loop"], strict=True)]
        speed = size * ENVS / seconds["loop"]
        figures.append(Figure(f"{name}: environment steps per second", speed, ""))
        figures += [
            Figure(f"{name}: share of {part}", 100 * share, " %") for part, share in shares.items()
        ]
        share = 100 * statistics.median(ratios)
        figures.append(Figure(f"{name}: of its bare parts", share, " %", 85))
        loader = 100 * seconds["loader"] / seconds["update"]
        figures.append(Figure(f"{name}: loader, of the update", loader, " %", 10, most=True))
    return figures


def main() -> None:
    """Measure everything and judge it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--eager", action="store_true", help="leave out what must be compiled")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ways = ["eager"] if options.eager else ["eager", "compiled"]
    sections: list[Callable[[], list[Figure]]] = [
        partial(updates, ways),
        partial(mixed_updates, ways),
        loops,
    ]
    if not options.eager:
        sections.append(graphs)
    figures: list[Figure] = []
    for section in sections:
        found = section()
        figures += found
        if not options.json:
            for figure in found:
                print(figure.line(), flush=True)
    missed = [figure.name for figure in figures if not figure.met]
    verdict = "all bars met" if not missed else "not met: " + "; ".join(missed)
    if options.json:
        found = [figure._asdict() | {"met": figure.met} for figure in figures]
        print(json.dumps({"figures": found, "verdict": verdict}, indent=2))
    else:
        print(verdict)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
