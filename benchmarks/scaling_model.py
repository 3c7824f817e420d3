"""How many actors a learner can take, what gives out first, and how old weights are: a model.

    python benchmarks/scaling_model.py                # the tables of docs/scaling.md
    python benchmarks/scaling_model.py --actors 20 --environments 640

It reckons with what was measured: benchmarks/results/scaling.json, which benchmarks/star.py and
benchmarks/actor_costs.py write (--write). Every actor and every learner has a core of its own, and
the work of a learner and of its bus add up: both are Python. Every version of the weights goes to
every actor, which is the most that it can cost. Nothing is simulated.
"""

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "scaling.json"
NETWORK = 1250.0  # MB a second: ten gigabits
ALL_REDUCE_MS = 2.5  # of an update of two learners along data: benchmarks/scaling.py
SLOW_STEP_US = 1000.0  # of a simulator that takes its time


@dataclass(frozen=True)
class Setting:
    """What is measured of an algorithm and an environment, and what is chosen."""

    name: str
    steps: int  # T, of each environment in a message
    step_us: float  # an actor's, for a step of one environment
    vector_step_us: float  # and for a step of all of them, however many
    learn_us: float  # the learner's, for a step
    message_us: float  # and for a message, however long
    frame_bytes: float
    message_bytes: float
    weights_kb: float  # of all agents
    actors: int = 100
    environments: int = 10_000  # of all actors and agents

    @property
    def frames(self) -> float:
        """Steps in a message."""
        return self.environments / self.actors * self.steps

    @property
    def play_ms(self) -> float:
        """What an actor needs for a message."""
        return (self.frames * self.step_us + self.steps * self.vector_step_us) / 1000

    @property
    def up_mb(self) -> float:
        """A message."""
        return (self.message_bytes + self.frames * self.frame_bytes) / 1e6


@dataclass(frozen=True)
class Star:
    """What the bus costs at its centre, by tcp with keys: µs, and µs a megabyte."""

    value_us: float
    value_mb_us: float
    message_us: float
    message_mb_us: float

    def receive_ms(self, one: Setting) -> float:
        """A message."""
        return (self.message_us + self.message_mb_us * one.up_mb) / 1000

    def publish_ms(self, one: Setting) -> float:
        """Weights, to one actor."""
        return (self.value_us + self.value_mb_us * one.weights_kb / 1000) / 1000


@dataclass(frozen=True)
class Flow:
    """What one learner and its actors make of it."""

    rate: float  # messages a second
    limit: str  # what gives out first
    bus: float  # share of the learner's time
    up: float  # MB a second
    down: float
    lag: float  # versions of the weights


def learner_ms(one: Setting, star: Star, actors: float) -> float:
    """What a learner needs for a message: to receive it, to learn, and to publish to all."""
    learn = (one.message_us + one.frames * one.learn_us) / 1000
    return star.receive_ms(one) + learn + actors * star.publish_ms(one)


def enough(one: Setting, star: Star) -> float:
    """The actors that keep one learner busy: K / play = 1 / (fixed + K · publish)."""
    fixed, each = learner_ms(one, star, 0), star.publish_ms(one)
    return (math.sqrt(fixed**2 + 4 * each * one.play_ms) - fixed) / (2 * each)


def flow(one: Setting, star: Star) -> Flow:
    """All actors on one learner."""
    needs = learner_ms(one, star, one.actors)
    traffic = one.up_mb + one.actors * one.weights_kb / 1000  # MB for each message
    rates = {
        "actors": 1000 * one.actors / one.play_ms,
        "learner": 1000 / needs,
        "network": NETWORK / traffic,
    }
    limit = min(rates, key=lambda name: rates[name])
    rate = rates[limit]
    bus = star.receive_ms(one) + one.actors * star.publish_ms(one)
    return Flow(
        rate,
        limit,
        bus / needs,
        rate * one.up_mb,
        rate * one.actors * one.weights_kb / 1000,
        (1 if limit == "actors" else 3) * one.actors,
    )


def settings(measured: dict[str, Any], **chosen: int) -> Iterator[Setting]:
    """Those that were measured, and one with a slow environment."""
    for name, constants in measured.items():
        yield Setting(name, **constants, **chosen)
    lander = next(name for name in measured if "LunarLander" in name)
    slow = replace(Setting(lander, **measured[lander], **chosen), step_us=SLOW_STEP_US)
    yield replace(slow, name=f"{lander.split(',')[0]}, 1 ms a step")


def table(header: str, rows: list[list[str]]) -> str:
    """As Markdown."""
    lines = [header, "| --- " * (header.count("|") - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def round_to(value: float, digits: int = 2) -> str:
    """With two digits that count."""
    if value <= 0:
        return "0"
    places = digits - 1 - math.floor(math.log10(value))
    return f"{round(value, places):,.{max(0, places)}f}"


def measured_table(each: list[Setting]) -> str:
    """The constants."""
    rows = [
        [
            one.name,
            f"{one.steps}",
            f"{round_to(one.vector_step_us)} + {round_to(one.step_us)} E",
            f"{round_to(one.message_us)} + {round_to(one.learn_us)} F",
            f"{round_to((one.message_bytes + one.frames * one.frame_bytes) / 1000)} KB",
            f"{round_to(one.weights_kb)} KB",
        ]
        for one in each
    ]
    return table("| | T | actor, µs a step | learner, µs a message | up | down |", rows)


def one_learner_table(each: list[Setting], star: Star) -> str:
    """All actors on one learner."""
    rows = []
    for one in each:
        found = flow(one, star)
        wanted = 1000 * one.actors / one.play_ms
        rows.append(
            [
                one.name,
                round_to(enough(one, star)),
                f"{round_to(found.rate * one.frames)} of {round_to(wanted * one.frames)}",
                found.limit,
                f"{found.bus:.0%}",
                f"{round_to(found.up)} + {round_to(found.down)}",
                f"{found.lag:.0f}",
            ]
        )
    head = "| | actors that fill one learner | steps a second, of what actors can make |"
    return table(f"{head} first to give out | bus | MB a second, up + down | lag |", rows)


def remedies_table(each: list[Setting], star: Star) -> str:
    """The same with other settings."""
    rows = []
    for one in each:
        learners = min(one.actors, max(1, math.ceil(one.actors / enough(one, star))))
        along = split(one, star, learners)
        longer = flow(replace(one, steps=4 * one.steps), star)
        rows.append(
            [
                one.name,
                round_to(flow(one, star).rate * one.frames),
                round_to(longer.rate * 4 * one.frames),
                f"{round_to(along[0])} ({learners}, lag {along[1]:.0f})",
            ]
        )
    head = "| steps a second | one learner | T four times as long |"
    return table(f"{head} learners along data until actors are the limit |", rows)


def split(one: Setting, star: Star, learners: int) -> tuple[float, float]:
    """Steps a second and lag with several learners, who update together."""
    actors = one.actors / learners
    needs = learner_ms(one, star, actors) + (ALL_REDUCE_MS if learners > 1 else 0)
    wanted, most = 1000 * actors / one.play_ms, 1000 / needs
    return learners * min(wanted, most) * one.frames, (1 if wanted < most else 3) * actors


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--actors", type=int, default=100)
    parser.add_argument("--environments", type=int, default=10_000, help="of all actors together")
    options = parser.parse_args()
    measured = json.loads(RESULTS.read_text())
    star = Star(**measured["star"]["tcp"])
    chosen = {"actors": options.actors, "environments": options.environments}
    each = list(settings(measured["actors"], **chosen))
    tables = measured_table(each), one_learner_table(each, star), remedies_table(each, star)
    print(*tables, sep="\n\n")


if __name__ == "__main__":
    main()
