"""Receive: what actors have done, instead of playing oneself; and how to learn from it.

Legend: P agents, D row length.
"""

import json
import time
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from evorl.actors import DEAD, WINDOW, ActorMessage, ActorShards, Exchange, WeightsMessage
from evorl.distributed import World
from evorl.envs import Failures
from evorl.experience import Sampler, ShardedSampler, Transitions
from evorl.pipeline.budget import generation_ends
from evorl.pipeline.collect import ENDLESS, EpisodeReturns, of_the_living
from evorl.pipeline.learn import DIVERGED, LearnUnrolls
from evorl.pipeline.training_context import TrainingContext, count_failures, warn_dead
from evorl.population import Population
from evorl.seeding import generator

REASONS = dict(zip(DEAD, ("", ENDLESS, DIVERGED), strict=True))  # of a death, by what it says
REFUSED, REPLAY = "refused_", "replay_"  # how counts of messages, and of shares, begin
Ints = npt.NDArray[np.int64]


class Receive:
    """An iteration is one message of an actor; in lock-step one of each of them."""

    def __init__(
        self,
        world: World,
        population: Population,
        exchange: Exchange,
        failures: Failures,
        sampler: Sampler,
        *,
        seed: int,
        first: int = 0,
    ) -> None:
        """`failures` is where those of the actors' environments are counted.

        As where there are no actors, what is sampled is keyed by generation and agent.
        """
        self.world, self.population, self.exchange = world, population, exchange
        self.sampler, self.seed, self.first = sampler, seed, first
        self.failures = failures
        self.returns = EpisodeReturns(population.size, 1)
        self.weights = WeightsMessage(
            population, targets=population.algorithm.sends == "transitions"
        )
        self._generation = -1
        self._frames, self._began = 0, 0.0  # environment steps of this generation, and its start
        self._cut: list[tuple[Transitions, npt.NDArray[np.float32]]] = []
        self.num_envs = exchange.inbox.limits.num_envs  # of an actor, for each agent

    def __call__(self, context: TrainingContext) -> None:
        """Give actors the newest weights, and take what comes."""
        if context.generation != self._generation:
            self._generation = context.generation
            self._frames, self._began = 0, time.perf_counter()
            self.returns.clear()
            agents = range(self.first, self.first + self.population.size)
            keys = [(self._generation, agent, *self.world.replica) for agent in agents]
            self.sampler.reseed([generator(self.seed, "sample", *key) for key in keys])
        with context.timer("publish"):
            last = self.exchange.lockstep and generation_ends(context)
            weights = self.weights(context.generation, context.agent_steps, last)
            self.exchange.publish(weights, context.generation)
        with context.timer("wait"):
            context.received = self.exchange.take()
        with context.timer("store"):
            self._take(context, context.received)

    def end_generation(self) -> None:
        """Running episodes are cut when actors get the agents of the next one."""

    def report(self, context: TrainingContext) -> None:
        """At a generation's end: what all learners have to tell of their actors, on the main one.

        Steps that were played for agents that are gone have been paid for.
        """
        own = self._report()
        own["rate"] = self._frames / max(time.perf_counter() - self._began, 1e-9)
        context.env_steps += own["counts"]["wasted_steps"]
        sent = self.world.trainers.gather(json.dumps(own).encode())
        if sent is None:
            return
        each = [json.loads(one) for one in sent]
        lags, queued = ([n for one in each for n in one[name]] for name in ("lags", "queued"))
        counts = sum((Counter(one["counts"]) for one in each), Counter())
        context.actors = {
            "alive": sum(one["alive"] for one in each),
            "sent": counts["sent"],
            "messages": counts["taken"],
            "lag": round(sum(lags) / max(len(lags), 1), 3),
            "max_lag": max(lags, default=0),
            "queue": round(sum(queued) / max(len(queued), 1), 3),
            "frames_per_second": round(sum(one["rate"] for one in each), 1),
            "refused": _named(counts, REFUSED),
            "lost": counts["lost"],
            "under_way": counts["under_way"],
            "gone": counts["gone"],
            "wasted_steps": counts["wasted_steps"],
        }
        if any(name.startswith(REPLAY) for one in each for name in one["counts"]):
            context.actors["replay"] = _named(counts, REPLAY)

    def _report(self) -> dict[str, Any]:
        """What this learner has to tell."""
        return self.exchange.report()

    def _take(self, context: TrainingContext, messages: list[ActorMessage]) -> None:
        new: Ints = np.zeros(self.population.size, np.int64)
        for message in messages:
            fields = message.fields
            self._frames += fields["env_steps"]
            context.env_steps += fields["env_steps"]
            context.episodes += fields["episodes"]
            context.exploration = fields["exploration"].numpy().copy()
            new += fields["steps"].numpy()
            ends = np.cumsum(fields["returned"].numpy())[:-1]
            for agent, own in enumerate(np.split(fields["returns"].numpy(), ends)):
                self.returns.ended[agent].extend(own.tolist())
                for total in own.tolist():
                    context.log.episode(agent, total)
            for slot, trace in fields["failures"]:
                self.failures.add(slot, [trace])
            self._observe(fields)
        count_failures(context, self.failures)
        self._bury(messages)
        # an agent's own steps are those of all who play for it
        context.count_steps(self.world.sum_over_replicas(new))

    def _observe(self, fields: dict[str, Any]) -> None:
        """Statistics take in what the actor's copy of them has.

        At their own pace learners of the same agents get messages of which some have taken in more
        often than others: so each merges once.
        """
        once = self.world.data > 1 and not self.exchange.lockstep
        for what in self.population.statistics_sizes():
            seen = fields[f"seen_{what}"]
            for part in [seen] if once else [seen[i : i + 1] for i in range(len(seen))]:
                self.population.merge(what, part)

    def _bury(self, messages: list[ActorMessage]) -> None:
        """Agents that died with an actor are dead here, and with all who train them."""
        dead = np.max([message.fields["dead"].numpy() for message in messages], 0)
        dead = self.world.max_over_replicas(dead.astype(np.int64))
        for agent in np.flatnonzero((dead > 0) & self.population.alive):
            warn_dead(self.population.genomes[agent].id, REASONS[DEAD[dead[agent]]])
        self.population.alive &= dead == 0


def _named(counts: Counter[str], start: str) -> dict[str, int]:
    """Counts whose names begin so, without that."""
    return {n.removeprefix(start): c for n, c in sorted(counts.items()) if n.startswith(start)}


class ReceiveWindows(Receive):
    """The same where the replay is here: it takes in what actors have seen."""

    def _take(self, context: TrainingContext, messages: list[ActorMessage]) -> None:
        super()._take(context, messages)
        self._cut = []
        for message in messages:
            fields = {
                name.removeprefix(WINDOW): own.numpy()
                for name, own in message.fields.items()
                if name.startswith(WINDOW)
            }
            errors, cut = fields.pop("td_errors"), fields.pop("cut")
            windows, rows = Transitions(**fields), np.arange(len(cut))
            self._insert(windows.take(rows[~cut]), errors[~cut])
            self._cut.append((windows.take(rows[cut]), errors[cut]))

    def end_generation(self) -> None:
        """What was pending enters the replay as truncated."""
        for windows, errors in self._cut:
            self._insert(windows, errors)
        self._cut = []

    def _insert(self, windows: Transitions, errors: npt.NDArray[np.float32]) -> None:
        kept = of_the_living(windows, errors, self.population.alive, self.num_envs)
        self.sampler.insert(*kept)


class ReceiveShares(Receive):
    """The same where actors keep what they play: what comes says how much there is to draw from."""

    def __init__(self, *parts: Any, shards: ActorShards, **keys: Any) -> None:
        super().__init__(*parts, **keys)
        self.shards = shards

    def __call__(self, context: TrainingContext) -> None:
        """Replays are those of the new agents before anybody plays for them."""
        if context.generation != self._generation:
            self.shards.begin(context.generation)
        super().__call__(context)

    def _take(self, context: TrainingContext, messages: list[ActorMessage]) -> None:
        super()._take(context, messages)
        self.shards.hear(messages)

    def _report(self) -> dict[str, Any]:
        own, sampler = super()._report(), self.sampler
        assert isinstance(sampler, ShardedSampler)
        counts = self.shards.report() | {"missing": sampler.missing}
        sampler.missing = 0
        own["counts"] |= {f"{REPLAY}{name}": count for name, count in counts.items()}
        return own


class LearnReceived(LearnUnrolls):
    """The updates that unrolls of actors call for; V-trace makes up for their lag."""

    def __call__(self, context: TrainingContext) -> None:
        """Take them in, and learn."""
        with context.timer("store"):
            for message in context.received:
                self.store.add(message.experience)
        super().__call__(context)


class ApplyGradients:
    """One step of Adam by what actors have found: each message's gradient, or in lock-step their
    mean. One that is late moves nobody.
    """

    def __init__(self, world: World, population: Population) -> None:
        self.world, self.population = world, population

    def __call__(self, context: TrainingContext) -> None:
        """Move every agent that somebody has found a gradient for."""
        population, used = self.population, [own for own in context.received if not own.late]
        counts, loss = np.zeros(population.size, np.int64), np.zeros(population.size)
        for message in used:
            counts += message.fields["updates"].numpy()
            loss += message.fields["loss"].numpy()
        total, loss = self.world.sum_over_replicas(counts), self.world.sum_over_replicas(loss)
        due = (total > 0) & population.alive
        if not due.any():
            return
        with context.timer("update"):
            population.apply(self._mean(used, total), due.astype(np.int64))
        context.updates += int(due.sum())
        context.loss = np.where(due, loss / np.maximum(total, 1), context.loss)
        context.log.update(due.astype(np.int64), np.where(due, context.loss, 0))

    def _mean(self, messages: list[ActorMessage], counts: Ints) -> list[torch.Tensor]:
        """For each group [P, D]; those ranks that train the same agents have a part of it each."""
        population, found = self.population, []
        for g, (numbers, group) in enumerate(
            zip(population.members, population.groups, strict=True)
        ):
            total = torch.zeros_like(group.theta)
            for i, message in enumerate(messages):
                own = message.fields[f"gradient{g}"].to(total.device)
                total = own if i == 0 else total + own
            share = np.maximum(counts[numbers], 1) / self.world.data
            found.append(total / torch.from_numpy(share[:, None]).to(total))
        return found

    def refill(self, context: TrainingContext) -> None:
        """There is nothing to fill first."""
