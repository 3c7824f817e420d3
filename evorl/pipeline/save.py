"""Save: a checkpoint after every generation, from which the run goes on to the same bytes.

Every rank writes its own replays, the main rank all the rest. A disk that is full is no reason to
stop: the run says so, and goes on with the checkpoint before.
"""

import json
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from evorl.config import CheckpointConfig, RunConfig
from evorl.distributed.world import World
from evorl.errors import CheckpointError, RunError
from evorl.experience import Replays
from evorl.genome import Genome
from evorl.pipeline.broadcast import digest_of
from evorl.pipeline.champion import HallOfFame
from evorl.pipeline.context import Context
from evorl.pipeline.everybody import Everybody, pack, unpack
from evorl.pipeline.evolve import Evolve
from evorl.population.group import AgentState
from evorl.runs.checkpoint import Checkpoint, Checkpoints, Draft, Written, serialise
from evorl.runs.directory import RunDirectory

POPULATION, PROGRESS = "population", "progress"


class Save:
    """Writes a checkpoint of all ranks; a collective act, of which the main rank is in charge."""

    def __init__(
        self,
        world: World,
        config: CheckpointConfig,
        checkpoints: Checkpoints | None,
        replays: Replays,
        progress: "Progress | None",
        *,
        shared: bool,
    ) -> None:
        """`checkpoints` are the main rank's; `shared`: all ranks see their folder."""
        self.world, self.config, self.checkpoints = world, config, checkpoints
        self.replays, self.progress, self.shared = replays, progress, shared

    def __call__(self, context: Context) -> None:
        """At a generation's end, when the next one is made."""
        if context.generation % self.config.every and not context.finished:
            return
        draft, problem = self._begin(context)
        if draft is not None:
            files, problem = self._write_replays(draft)
            if self.world.main:
                problem = problem or self._finish(context, draft, files)
        if problem and self.world.main:
            if draft is not None:
                draft.abandon()
            warnings.warn(f"no checkpoint this time, the last one stays: {problem}", stacklevel=2)

    def _begin(self, context: Context) -> tuple[Draft | None, str | None]:
        """The main rank makes the folder and tells the others; None if it cannot."""
        draft, problem, path = None, None, b""
        if self.checkpoints is not None and self.progress is not None:
            try:
                self.progress.directory.sync()  # the checkpoint will count on these lines
                draft = self.checkpoints.begin(context.generation)
                path = str(draft.path.absolute()).encode()
            except (CheckpointError, RunError) as error:
                problem = str(error)
        path = self.world.broadcast(path if self.world.main else None)
        if path and draft is None:
            draft = Draft(Path(path.decode()))
        return draft, problem

    def _write_replays(self, draft: Draft) -> tuple[list[Written], str | None]:
        """The files of all ranks, on the main rank; and what went wrong on any."""
        replays = self.replays.files() if self.config.replay else {}
        files, problem = [], None
        try:
            if self.shared or self.world.main:
                files = [draft.write(*file) for file in replays.items()]
            if not self.world.main:
                draft.settle()
        except CheckpointError as error:
            problem = str(error)
        if not self.shared:
            files, problem = self._receive_replays(draft, replays, files, problem)
        told = self.world.gather(json.dumps([files, problem]).encode())
        if told is None:
            return [], None
        replies = [json.loads(reply) for reply in told]
        problems = [problem for _, problem in replies if problem]
        return [Written(*file) for own, _ in replies for file in own], next(iter(problems), None)

    def _receive_replays(
        self,
        draft: Draft,
        replays: dict[str, dict[str, Tensor]],
        files: list[Written],
        problem: str | None,
    ) -> tuple[list[Written], str | None]:
        """The main rank writes for those that cannot see its disk, one file at a time."""
        names = self.world.gather(json.dumps(list(replays)).encode())
        if names is None:
            for tensors in replays.values():
                self.world.send(serialise(tensors), 0)
            return [], None
        for rank, own in enumerate(names[1:], 1):
            for stem in json.loads(own):
                data = self.world.receive(rank)  # even if there is nowhere to put it
                try:
                    if problem is None:
                        files.append(draft.write_bytes(stem, data))
                except CheckpointError as error:
                    problem = str(error)
        return files, problem

    def _finish(self, context: Context, draft: Draft, files: list[Written]) -> str | None:
        assert self.progress is not None  # on the main rank
        try:
            state, tensors = self.progress.state(context)
            files.append(draft.write(POPULATION, pack(self.progress.everybody.states)))
            files.append(draft.write(PROGRESS, tensors))
            state["mesh"] = {"population": self.world.population, "data": self.world.data}
            state["precision"] = self.world.precision
            draft.commit(state, files, best=self.progress.improved)
            self.progress.saved()
        except CheckpointError as error:
            return str(error)
        return None


class Progress:
    """All that the main rank knows of a run: to JSON and tensors, and back."""

    def __init__(
        self,
        everybody: Everybody,
        hall: HallOfFame,
        evolve: Evolve | None,
        directory: RunDirectory,
        config: RunConfig,
    ) -> None:
        self.everybody, self.hall, self.evolve = everybody, hall, evolve
        self.directory = directory
        self.budget, self.compiled = config.budget.model_dump(mode="json"), config.compile
        self._best = -float("inf")  # confirmed score at the last checkpoint

    @property
    def improved(self) -> bool:
        """Whether there is a new best since the last checkpoint."""
        return bool(self.hall.score > self._best)

    def saved(self) -> None:
        """There is a checkpoint of this moment."""
        self._best = self.hall.score

    def state(self, context: Context) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """JSON and tensors; nothing in them depends on time, host or process."""
        everybody = self.everybody
        agents = [
            {
                "genome": genome.to_json(),
                "alive": bool(alive),
                "steps": state.steps,
                "sha256": digest_of(state),
            }
            for genome, alive, state in zip(
                everybody.genomes, everybody.alive, everybody.states, strict=True
            )
        ]
        hall, tensors = self.hall.state()
        tensors |= context.tensors()
        found: dict[str, Any] = {
            "agents": agents,
            "budget": self.budget,
            "compiled": self.compiled,
            "context": context.numbers(),
            "hall": hall,
            "lines": self.directory.lines(),
        }
        if self.evolve is not None:
            found["evolve"], own = self.evolve.state()
            tensors |= own
        return found, tensors

    def restore(self, checkpoint: Checkpoint, context: Context) -> None:
        """The main rank goes on from a checkpoint; `Spread` then tells the others."""
        state, tensors = checkpoint.state, checkpoint.load(PROGRESS)
        self.everybody.meet(*read_agents(checkpoint))
        context.take(state["context"], tensors, slice(None))
        context.iteration = context.begins
        self.hall.restore(state["hall"], tensors)
        self._best = self.hall.score
        if self.evolve is not None:
            self.evolve.restore(state["evolve"], tensors)
        self.directory.cut(state["lines"])


class Agents(NamedTuple):
    """All agents of a checkpoint."""

    genomes: list[Genome]
    states: list[AgentState]
    alive: list[bool]


def read_agents(checkpoint: Checkpoint) -> Agents:
    """The agents as they were when the checkpoint was written, which their hashes prove."""
    agents = checkpoint.state["agents"]
    steps = {i: agent["steps"] for i, agent in enumerate(agents)}
    found = unpack(checkpoint.load(POPULATION), steps)
    states = [found[i] for i in range(len(agents))]
    genomes = [Genome.from_json(agent["genome"]) for agent in agents]
    for genome, own, agent in zip(genomes, states, agents, strict=True):
        if digest_of(own) != agent["sha256"]:
            raise CheckpointError(f"{checkpoint.path}: agent {genome.id} is not as written down")
    return Agents(genomes, states, [agent["alive"] for agent in agents])
