"""An actor: it plays with a copy of the learner's agents, and says what came of it.

Legend: P agents, N environments of an agent, T steps of a message, R episodes that ended.

It steps its environments by the same stages that a run without actors does, and so are its random
numbers: of the first actor they are those of a run without any.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evorl.actors import (
    DEAD,
    MOST_FAILURES,
    MOST_SEEN,
    TRACE,
    UNROLL,
    WINDOW,
    OwnShard,
    load_weights,
)
from evorl.distributed import ActorWorld
from evorl.envs import LARGEST, VectorEnv
from evorl.experience import RolloutBuffer, RolloutSampler, Transitions
from evorl.pipeline.collect import Collect, CollectRollout, of_the_living
from evorl.pipeline.learn import LearnRollout
from evorl.pipeline.training_context import TrainingContext
from evorl.population import Population
from evorl.seeding import generator

LIVES, ENDLESS, DIVERGED = range(len(DEAD))


class Actor:
    """Plays T steps of every environment of all agents, again and again.

    Attributes:
        population: The copy of the learner's agents.
        steps: T.
    """

    def __init__(
        self,
        population: Population,
        env: VectorEnv,
        steps: int,
        *,
        seed: int,
        first: int = 0,
        number: int = 0,
        fellows: int = 1,
        incarnation: int = 0,
        share: float | None = None,
        first_errors: bool = False,
        shard: OwnShard | None = None,
    ) -> None:
        """What it does at random goes by seed, number and incarnation.

        Args:
            population: A copy of the learner's agents (see `evorl.actors.copy_of`).
            env: N environments for each of them.
            steps: Of each environment, of which a message tells: T.
            seed: The run's.
            first: Number of the first of these agents among all of the run.
            number: Which one it is of those that play for the same agents.
            fellows: How many these are.
            incarnation: How many processes had this number before.
            share: Where it is among those that explore differently, from 0 to 1; by default that
                goes by its number.
            first_errors: Whether transitions come with their TD errors.
            shard: Where they are kept; without one they go up.
        """
        self.population, self.steps, self._fellows = population, steps, fellows
        place, keys = ActorWorld(number, fellows, incarnation), {"seed": seed, "first": first}
        self.shard = shard
        self._collect: PlayWindows | PlayRollout
        self.upload: PackWindows | PackUnrolls | PackGradients
        if population.algorithm.sends == "transitions":
            windows = PlayWindows(place, population, env, first_errors, **keys)
            windows.share = number / max(fellows - 1, 1) if share is None else share
            self._collect, self.upload = windows, PackWindows(windows)
            if shard is not None:
                self.upload = KeepWindows(windows, shard)
        else:
            obs, action = env.observation, env.action
            kinds = ((obs.shape, obs.dtype), (action.shape, action.dtype))
            size = population.size
            rollout = RolloutBuffer(self.steps, size, env.num_envs // size, *kinds)
            agents = range(first, first + size)
            sampler = RolloutSampler(rollout, [generator(seed, "sample", 0, own) for own in agents])
            self._collect = PlayRollout(place, population, env, sampler, **keys)
            gives = PackGradients if population.algorithm.sends == "gradients" else PackUnrolls
            self.upload = gives(place, population, sampler)
        self._last = False  # is this the generation's last message?
        self._context = TrainingContext(population.size, generation=-1)
        self._agents: Tensor | None = None  # who they are, as the weights' message says
        self._version = -1

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        """Become what the learner's agents are now; in another generation episodes begin anew."""
        agents, context = weights["population"], self._context
        renewed = self._agents is None or not torch.equal(self._agents, agents)
        load_weights(self.population, weights, renewed)
        if weights["generation"] != context.generation:
            self.population.running_returns = None
            context.generation = weights["generation"]
            self._collect.end_generation()
            self.upload.clear()
            if self.shard is not None:
                self.shard.begin(context.generation)
        self._last = weights["last"]
        context.agent_steps = np.array(weights["steps"], np.int64)
        self._agents, self._version = agents, version

    def play(self) -> dict[str, Any]:
        """T steps, and the fields of the message that tells of them."""
        context, population, collect = self._context, self.population, self._collect
        before, lived = context.agent_steps, population.alive.copy()
        context.env_steps = context.episodes = context.iteration = 0
        context.ends = self.steps
        population.taken_in = {}
        for _ in range(self.steps):
            collect(context)
            context.iteration += 1
        if self._last:
            self._collect.cut()
        acts = population.alive.copy()
        self.upload(context)
        dead = np.where(lived & ~acts, ENDLESS, np.where(acts & ~population.alive, DIVERGED, LIVES))
        returns = collect.returns.take()
        return {
            "version": self._version,
            "generation": context.generation,
            "env_steps": context.env_steps,
            "steps": torch.from_numpy((context.agent_steps - before) // self._fellows),
            "episodes": context.episodes,
            "returns": torch.tensor([one for own in returns for one in own], dtype=torch.float64),
            "returned": torch.tensor([len(own) for own in returns]),
            "exploration": torch.from_numpy(context.exploration),
            "dead": torch.from_numpy(dead.astype(np.uint8)),
            "failures": collect.take_failures(),
            **self._seen(),
            **self.upload.fields(),
        }

    def _seen(self) -> dict[str, Tensor]:
        """What its copy of the statistics took in: the learner's are to, as well."""
        taken, population, found = self.population.taken_in or {}, self.population, {}
        for what, size in population.statistics_sizes().items():
            empty = torch.zeros(0, population.size, 1 + 3 * size, dtype=torch.float64)
            seen = torch.stack(taken[what]) if what in taken else empty
            seen[~(seen.abs() <= MOST_SEEN).all(2)] = 0  # nothing, of who has seen no numbers
            found[f"seen_{what}"] = seen
        return found


class CollectForLearner(Collect):
    """Collects as a run without actors does; but failures and deaths are the learner's to tell."""

    def cut(self) -> None:
        """A generation ends here, and with it all episodes."""

    def take_failures(self) -> list[list[Any]]:
        """What environments raised, as [slot, text] each: the last ones, if there are many."""
        taken = self.env.failures.take()
        return [[slot, trace[-TRACE:]] for slot, trace in taken[-MOST_FAILURES:]]

    def _warn_dead(self, agent: int) -> None:
        pass

    def _count_failures(self, context: TrainingContext) -> None:
        pass


class PlayRollout(CollectForLearner, CollectRollout):
    """Where agents learn from rollouts."""


class PlayWindows(CollectForLearner):
    """Where agents learn from a replay, which is not here; exploring is divided among actors."""

    share = 0.0  # where it stands among them, from 0 to 1

    def __init__(
        self,
        place: ActorWorld,
        population: Population,
        env: VectorEnv,
        first_errors: bool,
        *,
        seed: int,
        first: int = 0,
    ) -> None:
        nowhere: Any = Nowhere()
        n_step = population.algorithm.n_step  # type: ignore[attr-defined]
        super().__init__(
            place,
            population,
            env,
            nowhere,
            nowhere,
            n_step=n_step,
            seed=seed,
            first=first,
            first_errors=first_errors,
        )
        self.windows_kept: list[Transitions] = []
        self.cut_from: int | None = None  # those from here on were cut at a generation's end

    def cut(self) -> None:
        """What is pending goes up as truncated."""
        self.cut_from = len(self.windows_kept)
        super().end_generation()

    def end_generation(self) -> None:
        """What is left over is of agents that are gone."""
        self.windows.flush()
        self._obs = None

    def _exploration(self, context: TrainingContext) -> npt.NDArray[np.float64]:
        all_of_it = super()._exploration(context)
        return self.population.algorithm.exploration_of(all_of_it, self.share)

    def _store(self, transitions: Transitions, cut: bool = False) -> None:
        self.windows_kept.append(Transitions._make(np.array(own) for own in transitions))


class Nowhere:
    """Instead of a replay."""

    def reseed(self, generators: Sequence[np.random.Generator]) -> None:
        """Nothing is drawn here."""


class PackWindows:
    """N-step transitions as they come, with how wrong their agents are about them."""

    def __init__(self, collect: PlayWindows) -> None:
        self._collect = collect

    def __call__(self, context: TrainingContext) -> None:
        """By the weights that took the actions."""
        collect = self._collect
        kept = collect.windows_kept
        whole = len(kept) if collect.cut_from is None else collect.cut_from
        self._cut = np.repeat(np.arange(len(kept)) >= whole, [len(own.env) for own in kept])
        self._windows = Transitions._make(np.concatenate(own) for own in zip(*kept, strict=True))
        whole_ones = self._windows.take(np.flatnonzero(~self._cut))
        errors = collect.td_errors(whole_ones, whole_ones.env // collect.num_envs)
        self._errors = np.full(len(self._cut), np.nan, np.float32)
        if errors is not None:
            self._errors[~self._cut] = errors
        self._leave_out(whole_ones=~self._cut if errors is not None else None)
        self.clear()

    def _leave_out(self, whole_ones: npt.NDArray[np.bool_] | None) -> None:
        """Whose experience or TD errors are no numbers is dead; nothing of that goes up."""
        windows, errors = self._windows, np.where(self._cut, 0, self._errors)
        fine = np.ones(len(self._cut), np.bool_) if whole_ones is None else np.isfinite(errors)
        for own in (windows.obs, windows.action, windows.rewards, windows.next_obs):
            if own.dtype.kind == "f":
                fine &= (np.abs(own) <= LARGEST).all(tuple(range(1, own.ndim)))
        if not fine.all():
            agents = windows.env[~fine] // self._collect.num_envs
            self._collect.population.alive[agents] = False
            self._windows = windows.take(np.flatnonzero(fine))
            self._errors, self._cut = self._errors[fine], self._cut[fine]

    def clear(self) -> None:
        """Of other agents."""
        self._collect.windows_kept, self._collect.cut_from = [], None

    def fields(self) -> dict[str, Tensor]:
        """What is sent of it."""
        found = self._windows._asdict()
        found["rewards"] = found["rewards"].astype(np.float32)
        found |= {"td_errors": self._errors, "cut": self._cut}
        return {f"{WINDOW}{name}": torch.from_numpy(own) for name, own in found.items()}


class KeepWindows(PackWindows):
    """The same, into the part of the replay that is here; what is sent is how much that holds."""

    def __init__(self, collect: PlayWindows, shard: OwnShard) -> None:
        super().__init__(collect)
        self._shard = shard

    def __call__(self, context: TrainingContext) -> None:
        """By the weights that took the actions."""
        super().__call__(context)
        alive = self._collect.population.alive
        for cut in (False, True):
            rows = np.flatnonzero(self._cut == cut)
            windows, errors = self._windows.take(rows), self._errors[rows]
            kept = of_the_living(windows, errors, alive, self._collect.num_envs)
            self._shard.insert(context.generation, kept, cut)

    def fields(self) -> dict[str, Tensor]:
        """What is sent of it."""
        return self._shard.status()


class PackUnrolls(LearnRollout):
    """A full rollout as it is, with how likely its actions were: what to make of it is known when
    it is learned from.
    """

    def __call__(self, context: TrainingContext) -> None:
        """By the weights that took the actions."""
        rollout = self.rollout
        obs, action = rollout.field("obs"), rollout.field("action")
        likely = self.population.log_prob(obs.flatten(1, 2), action.flatten(1, 2))
        self._unrolls = rollout.unrolls(likely.view(obs.shape[:3]))
        rollout.clear()
        self._leave_out()

    def _leave_out(self) -> None:
        """Whose unrolls are no numbers is dead, and sends none: a learner would refuse the message,
        and with it what all others have played.
        """
        fine = torch.ones(self.population.size, dtype=torch.bool)
        for own in self._unrolls.values():
            if own.is_floating_point():
                fine &= (own.abs() <= LARGEST).flatten(1).all(1).cpu()
        if not fine.all():
            self.population.alive &= fine.numpy()
            for name, own in self._unrolls.items():
                own[~fine] = name == "ended"

    def fields(self) -> dict[str, Tensor]:
        """What is sent of it."""
        return {f"{UNROLL}{name}": own for name, own in self._unrolls.items()}

    def clear(self) -> None:
        """Of other agents."""
        self.rollout.clear()


class PackGradients(LearnRollout):
    """Of a full rollout, what an update would go by; nobody moves."""

    def __call__(self, context: TrainingContext) -> None:
        """Judge what was done; whose loss is not finite is dead."""
        population = self.population
        self._loss = np.zeros(population.size)
        self._matrices = [torch.zeros_like(group.theta) for group in population.groups]
        self._made = np.zeros(population.size, np.int64)
        drawn = self._drawn(context)
        if drawn is None:
            return
        found = population.gradients(*drawn)
        population.alive &= np.abs(found.loss) <= LARGEST
        for numbers, own in zip(population.members, found.matrices, strict=True):
            population.alive[numbers] &= (own.abs() <= LARGEST).all(1).cpu().numpy()
        self._forget()
        self._made = population.alive.astype(np.int64)
        self._loss = np.where(population.alive, found.loss, 0)
        for numbers, own in zip(population.members, found.matrices, strict=True):
            own[torch.from_numpy(~population.alive[numbers])] = 0
        self._matrices = found.matrices

    def fields(self) -> dict[str, Tensor]:
        """What is sent of it; zeros if it was not to be learned from."""
        gradients = {f"gradient{g}": own for g, own in enumerate(self._matrices)}
        loss, made = torch.from_numpy(self._loss), torch.from_numpy(self._made)
        return {"loss": loss, "updates": made, **gradients}

    def clear(self) -> None:
        """Of other agents."""
        self.rollout.clear()
