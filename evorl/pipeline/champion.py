"""Chooses the champion, the best agent so far: the best of a generation must win a race.

The highest of many noisy fitnesses is biased upward. So a generation's best becomes the champion
only if it also wins a race against the one before, on further seeds that are the same for all
candidates (the configuration calls it confirmed). Agents decay after their peak: what is kept is a
snapshot.

Both play in waves, until one of them is clearly ahead, or the seeds are used up. What the champion
has not played yet it plays when a race comes to that. Each race begins with other seeds: on those
by which it became the champion, it was lucky.

Legend: E further seeds.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evorl.config import RunConfig
from evorl.distributed import World
from evorl.envs import Episodes, steps_limit
from evorl.errors import RunError
from evorl.evolution import Fitness
from evorl.genome import Genome
from evorl.pipeline.evaluate import PlayTogether
from evorl.pipeline.saved_state import check_agent, check_tensor
from evorl.pipeline.snapshot import Progress, Snapshot, pack, unpack
from evorl.pipeline.training_context import TrainingContext
from evorl.population import AgentState, Population
from evorl.runs import Interface, RunDirectory, SavedAgent
from evorl.seeding import integers

FIRST_WAVE = 5  # episodes before a race is first judged; every later wave doubles their number
# A race is over when the candidate's lead is this many standard errors or more, times the share of
# episodes that are left: to tell equals apart is not worth many. To lose a good candidate costs
# little, as the next generation has another; a bad champion costs more.
BEHIND, AHEAD = -1.0, 1.5

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class KeptAgent(NamedTuple):
    """An agent as it was at a generation's end, with everything that a child inherits."""

    genome: Genome
    state: AgentState
    generation: int  # at whose end
    own_steps: int
    facts: Mapping[str, Any] = {}  # what its file says of it, if it is the champion


class Champion:
    """Lets the best of each evaluation play further, and keeps best/ in the run's directory."""

    name = "champion"

    def __init__(
        self,
        world: World,
        population: Population,
        episodes: Episodes,
        directory: RunDirectory,
        config: RunConfig,
    ) -> None:
        """Of the population it takes the networks and the algorithm only."""
        self.world, self.specs, self.algorithm = world, population.specs, population.algorithm
        self.team = world.evaluators  # ranks that play; the first of them decides
        limit = steps_limit(config.evaluation.max_steps, episodes.max_episode_steps)
        self.play = PlayTogether(self.team, population, episodes, limit)
        self.interface, self.directory = Interface.of(episodes.spaces), directory
        self.env_id, self.stop_at = config.env.id, config.budget.stop_at
        self.seeded = config.evaluation.source == "episodes"  # fitness, as the score
        self.fitness = Fitness.named(config.evaluation.fitness)
        count = config.evaluation.confirm_episodes
        self.seeds = integers(config.seed, "confirmation", count=count)
        self.agent: KeptAgent | None = None  # the best agent ever seen, as it was then
        self.returns: Floats | None = None  # [E] of the best, on the further seeds; NaN: not played
        self.crowned: int | None = None  # the champion's place, if the latest race was its own
        self._saved: tuple[KeptAgent | None, Floats] | None = None  # what is in best/

    @property
    def score(self) -> float:
        """The champion's fitness on the further seeds that it has played; -inf: there is none."""
        return -np.inf if self.returns is None else float(self.fitness(self.played[None])[0])

    @property
    def played(self) -> Floats:
        """The champion's returns on the further seeds that it has played."""
        return np.zeros(0) if self.returns is None else _played(self.returns)

    @property
    def reached_stop_at(self) -> bool:
        """Whether the champion is as good as the run was to become: only all seeds can say so."""
        if self.stop_at is None or len(self.played) < len(self.seeds):
            return False
        return self.score >= self.stop_at

    def __call__(self, context: TrainingContext) -> None:
        """At a generation's end; evaluators, if there are any, have let them race by then."""
        main, scored = self.world.main, context.scored
        if not self.world.lag:
            self.play_race(context, context.snapshot if main else None)
        if main:
            if scored is not None:
                self.returns = scored.champion
                if scored.crowned is not None:
                    self.agent = self._keep(context.evaluated, scored.crowned)
            self._announce(context.snapshot)

    def play_race(self, context: TrainingContext, snapshot: Snapshot | None) -> None:
        """All ranks of the team play; the first, with the snapshot, decides which and who wins."""
        with context.timer("evaluate"):
            if snapshot is None:
                self.play.follow()
            else:
                # what all ranks have gathered is counted there; by evaluators, on their own
                self._decide(context if self.world.lag else snapshot, snapshot)
                self.play.end()

    def _announce(self, snapshot: Snapshot) -> None:
        """On the main rank: save the champion if it is new, and put its score in the snapshot."""
        if self.returns is not None and not self.saved:
            self.directory.save_best(self.saved_agent())
            self._saved = (self.agent, self.returns)
        snapshot.best = self.score
        snapshot.best_episodes = len(self.played)
        snapshot.finished |= self.reached_stop_at

    def _decide(self, progress: Progress, snapshot: Snapshot) -> None:
        """Choose a candidate: only one that may beat the champion's score plays further episodes.

        They are other seeds, so a standard error is allowed for. In training agents explore, and
        their fitness is no measure for that. A child that has not trained yet shows what its parent
        can do.
        """
        self.crowned = None
        trained = [genome.born < snapshot.generation for genome in snapshot.genomes]
        known = np.where(np.isfinite(snapshot.fitness) & trained, snapshot.fitness, -np.inf)
        agent = int(np.argmax(known))
        error = np.nan_to_num(self.fitness.errors(snapshot.returns)[agent])
        if known[agent] > -np.inf and (known[agent] + error >= self.score or not self.seeded):
            candidate = self._keep(snapshot, agent)
            returns = self._race(progress, candidate)
            if returns is not None:
                self.agent, self.returns, self.crowned = candidate, returns, agent
        self._play_on(progress)

    def _keep(self, snapshot: Snapshot, agent: int) -> KeptAgent:
        """An agent as it is now."""
        own_steps = int(snapshot.agent_steps[agent])
        facts = {
            "env": self.env_id,
            "place": agent,
            "fitness": float(snapshot.fitness[agent]),
            "generation": snapshot.ended,
            "env_steps": snapshot.env_steps,
            "own_steps": own_steps,
        }
        genome, state = snapshot.genomes[agent], snapshot.states[agent]
        return KeptAgent(genome, state, snapshot.ended, own_steps, facts)

    def _race(self, progress: Progress, candidate: KeptAgent) -> Floats | None:
        """The candidate's returns if it has won, else None; of equals the later one wins."""
        order = np.roll(np.arange(len(self.seeds)), -FIRST_WAVE * candidate.generation)
        returns, lead = np.full(len(order), np.nan), 0.0
        while np.isnan(returns).any():
            common = order[: max(FIRST_WAVE, 2 * len(_played(returns)))]
            returns = self._further(progress, candidate, returns, common)
            if self.agent is None or self.returns is None or not np.isfinite(self.score):
                return returns  # there is no champion to beat
            if not np.isfinite(returns[common]).all():
                return None
            self.returns = self._further(progress, self.agent, self.returns, common)
            lead, over = settled(self.fitness, returns[common], self.returns[common], len(order))
            if over:
                break
        return returns if lead >= 0 else None

    @property
    def saved(self) -> bool:
        """Whether best/ holds it, with what is known of it."""
        champion, known = self._saved or (None, np.zeros(0))
        if self.returns is None or champion is not self.agent:
            return False
        return np.array_equal(known, self.returns, equal_nan=True)

    def _play_on(self, progress: Progress) -> None:
        """A champion that looks good enough to end the run plays all seeds."""
        while self.agent is not None and self.returns is not None and self.stop_at is not None:
            error = np.nan_to_num(self.fitness.errors(self.played[None])[0])
            left = np.flatnonzero(np.isnan(self.returns))
            if not left.size or self.score + error < self.stop_at:
                return
            wave = left[: len(self.played)]
            self.returns = self._further(progress, self.agent, self.returns, wave)

    def _further(
        self, progress: Progress, agent: KeptAgent, returns: Floats, which: Ints
    ) -> Floats:
        """An agent's returns, with those on these seeds, which it plays if it has not yet."""
        new = which[np.isnan(returns[which])]
        if not new.size:
            return returns
        seeds = [self.seeds[i] for i in new]
        played = self.play(progress, agent.genome, agent.state.online, seeds)
        returns = returns.copy()
        returns[new] = np.where(np.isfinite(played), played, -np.inf)
        return returns

    def saved_agent(self) -> SavedAgent:
        """The champion, which the run returns; RunError if no agent was ever any good."""
        if self.agent is None:
            raise RunError(
                f"{self.directory.path}: no agent ever had a finite fitness;"
                + (
                    " look at the rewards that the environment gives"
                    if self.seeded
                    else " no episode ended, set evaluation.every to several of them"
                )
            )
        confirmed = self.score if np.isfinite(self.score) else None
        return SavedAgent(
            self.agent.genome,
            self.specs,
            self.agent.state.online,
            self.algorithm.model_dump(mode="json"),
            self.interface,
            {**self.agent.facts, "confirmed": confirmed, "confirm_episodes": len(self.played)},
        )

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What `restore` needs, as JSON and tensors."""
        if self.agent is None or self.returns is None:
            return {}, {}
        genome, state = self.agent.genome.to_json(), self.agent.state
        values = self.agent._asdict() | {"genome": genome, "state": state.updates}
        return values, pack([state]) | {"returns": torch.from_numpy(self.returns)}

    def restore(self, values: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Resume from an earlier `state`; best/ becomes what it was then."""
        if not values:
            return
        genome, (state,) = Genome.from_json(values["genome"]), unpack(tensors, [values["state"]])
        check_agent(genome, state, self.specs, self.algorithm)
        returns = check_tensor(tensors, "returns", len(self.seeds))
        self.agent = KeptAgent(**values | {"genome": genome, "state": state})
        self.returns = returns.numpy().copy()
        self._saved = (self.agent, self.returns)
        if self.world.main:
            self.directory.save_best(self.saved_agent())


def settled(fitness: Fitness, ahead: Floats, behind: Floats, episodes: int) -> tuple[float, bool]:
    """The lead on common seeds, and whether a race over this many episodes may end there.

    Not between agents that are alike on all of them: where returns are at their highest, a few
    episodes do not tell a good agent from a perfect one.
    """
    lead, error = map(float, fitness.lead(ahead, behind))
    left = 1 - len(ahead) / episodes
    return lead, not BEHIND * left * error <= lead <= AHEAD * left * error


def _played(returns: Floats) -> Floats:
    return returns[~np.isnan(returns)]
