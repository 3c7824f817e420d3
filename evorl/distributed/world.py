"""The ranks of a run. There always is a World: one process is a world of size 1.

Ranks are a mesh, population × data. Along population they hold different agents, along data the
same ones: rank = population_rank * data + data_rank (see mesh.py). Evaluators are further ranks
after these, and actors after all: they talk to a learner on the bus, and take no part in what ranks
do together.

    world = World.start(agents=8)
    mine = world.own_agents(8)  # the agents of this rank
    world.average_(gradients)  # over the ranks with the same agents
    everything = world.gather(payload)  # on the main rank, by rank
    world.trainers.any_rank(flag)  # the same for some ranks: a team

Every method but send and receive is for all ranks together, or for all of a team: one entered by
some of them only waits for the others until the time-out, and in a stage with `filter_labels`
raises at once. With one rank each is trivial, and torch.distributed unused.
"""

import itertools
import json
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any, Literal

import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from evorl.distributed.accelerator import make_accelerator
from evorl.distributed.labels import labels_of, refuse_in_partial_stage
from evorl.distributed.launcher import end_with_launcher, has_place, launched_ranks, named_store
from evorl.distributed.meeting_place import on_loopback
from evorl.distributed.mesh import Mesh, lay_out
from evorl.errors import ConfigError, rank_errors

CHUNK = 64 * 2**20  # bytes of one message
TRAINERS, EVALUATORS = ("trainer", "learner"), ("evaluator",)  # their labels
POLL = 0.02  # seconds between two looks of an evaluator whether the others have come

WORLDS = itertools.count()  # with evaluators, of this process; all ranks make them in one order


class Team:
    """Some of the ranks, in order, and what they say to each other; the first is in charge."""

    def __init__(
        self, world: "World", ranks: range, group: Any, roles: Collection[str] = ()
    ) -> None:
        """`group` is torch's, of these ranks; None if there is only one. Nobody else has `roles`;
        none: they are all ranks.
        """
        self.ranks, self.size, self._world, self._group = ranks, len(ranks), world, group
        self.roles = roles
        self.joined = world.rank in ranks
        self.place = ranks.index(world.rank) if self.joined else -1
        self.first = self.place == 0

    def gather(self, payload: bytes) -> list[bytes] | None:
        """Everybody's payload, in the order of ranks, on the first one; None elsewhere."""
        self._together("gather")
        if not self.first:
            self._world.send(payload, self.ranks[0])
            return None
        return [payload] + [self._world.receive(source) for source in self.ranks[1:]]

    def all_gather(self, payload: bytes) -> list[bytes]:
        """Everybody's payload, in the order of ranks, on each of them."""
        self._together("all_gather")
        mine = self._world.rank
        return [self._broadcast(payload if one == mine else None, one) for one in self.ranks]

    def broadcast(self, payload: bytes | None) -> bytes:
        """The first one's payload on each of them; what the others bring does not count."""
        self._together("broadcast")
        return self._broadcast(payload if self.first else None, self.ranks[0])

    def broadcast_json(self, value: Any) -> Any:
        """The first one's plain value on each of them; what the others bring does not count."""
        return json.loads(self.broadcast(json.dumps(value).encode()))

    def any_rank(self, flag: bool) -> bool:
        """Whether any of them says so."""
        self._together("any_rank")
        if self.size == 1:
            return flag
        said = torch.tensor([int(flag)])
        with rank_errors(f"any_rank: rank {self._world.rank} lost another one"):
            dist.all_reduce(said, dist.ReduceOp.MAX, group=self._group)
        return bool(said)

    def _together(self, method: str) -> None:
        """StageError in a stage that some of them leave out."""
        if self.size > 1:
            refuse_in_partial_stage(method, self.roles)

    def _broadcast(self, payload: bytes | None, source: int) -> bytes:
        if self.size == 1 and payload is not None:
            return payload
        mine = self._world.rank
        with rank_errors(f"broadcast from rank {source}: rank {mine} lost another one"):
            return pass_bytes(payload, lambda part: dist.broadcast(part, source, group=self._group))


class World:
    """This rank, the others, and what they say to each other."""

    @classmethod
    def start(
        cls,
        agents: int,
        population: int | Literal["auto"] = "auto",
        data: int = 1,
        evaluators: int = 0,
        actors: int = 0,
        timeout: float = 600.0,
    ) -> "World":
        """Meet the ranks that were launched; a mesh that does not fit them is a ConfigError.

        Args:
            agents: All agents of the run.
            population: Ranks along the population; auto takes all that data leaves.
            data: Ranks that hold the same agents and average their gradients.
            evaluators: Ranks that train nobody, and score all agents meanwhile.
            actors: Ranks that train nobody, and play for those that do; of a launch only: one
                process starts its own.
            timeout: Seconds that a rank waits for another before it gives up.
        """
        ranks = launched_ranks()
        actors = actors if ranks > 1 else 0
        # nothing is open yet: all ranks can leave
        mesh = lay_out(ranks, agents, population, data, evaluators, actors)
        if ranks > 1:
            end_with_launcher()
        with on_loopback(has_place()):
            accelerator, made_group = make_accelerator(ranks, timeout)
            return cls(accelerator, mesh, timeout, made_group)

    def __init__(
        self, accelerator: Any, mesh: Mesh, timeout: float, owns_process_group: bool = False
    ) -> None:
        self.accelerator = accelerator  # mixed precision and trackers come from here
        # With several ranks Accelerate says cpu:0, which is not equal to the cpu of a tensor.
        on_cpu = accelerator.device.type == "cpu"
        self.device: torch.device = torch.device("cpu") if on_cpu else accelerator.device
        self.rank: int = accelerator.process_index
        self.mesh, self.size = mesh, mesh.size
        self.population, self.data = mesh.population, mesh.data
        self.data_rank = self.rank % mesh.data
        self.replica = (self.data_rank,) * (self.data_rank > 0)  # what its random numbers go by
        self.main, self.acts = self.rank == 0, self.rank >= mesh.size
        self._owns_process_group, self._limit = owns_process_group, timedelta(seconds=timeout)
        self._bell, self._rung = None, 0  # by which evaluators know that a generation has ended
        with rank_errors(f"start: rank {self.rank} lost another one"):
            # Control traffic: on the host, also where the default group is NCCL's.
            self._control = self._new_group(range(self.size))
            self.everyone = self.trainers = self.evaluators = Team(
                self, range(self.size), self._control
            )
            if mesh.evaluators:  # else all ranks do both
                ranks = range(mesh.trainers), range(mesh.trainers, self.size)
                groups = [self._new_group(own) for own in ranks]
                self.trainers = Team(self, ranks[0], groups[0], TRAINERS)
                self.evaluators = Team(self, ranks[1], groups[1], EVALUATORS)
                self._bell = named_store(f"world{next(WORLDS)}", self._limit)
            if self.data > 1:
                self._replicas, _ = dist.new_subgroups_by_enumeration(  # type: ignore[no-untyped-call]
                    mesh.data_lines(), timeout=self._limit
                )

    def _new_group(self, ranks: range) -> Any:
        """Made by all ranks, also by those that are none of them."""
        if len(ranks) == 1:
            return None
        return dist.new_group(list(ranks), backend="gloo", timeout=self._limit)

    @property
    def lag(self) -> int:
        """Generations by which evaluation is behind training: evaluators have older weights."""
        return int(self.mesh.evaluators > 0)

    @property
    def labels(self) -> frozenset[str]:
        """What this rank is, for a stage that says where it runs."""
        trains = self.trainers.joined
        roles = {TRAINERS: trains, EVALUATORS: self.evaluators.joined, ("actor",): self.acts}
        own = {name for names, holds in roles.items() if holds for name in names}
        return labels_of(self.rank, self.size + self.mesh.actors) | own

    @property
    def precision(self) -> str:
        """Accelerate's mixed precision: no or bf16."""
        return str(self.accelerator.mixed_precision)

    @property
    def half(self) -> torch.dtype | None:
        """The type of matrix products that Accelerate's mixed precision asks for; None: their own.

        fp16 is refused: it needs its losses scaled, and evorl writes its gradients out itself.
        """
        wanted = self.accelerator.mixed_precision
        if wanted not in ("no", "bf16"):
            raise ConfigError(f"mixed_precision: must be no or bf16, got {wanted}")
        return torch.bfloat16 if wanted == "bf16" else None

    def own_agents(self, agents: int) -> range:
        """The agents of this rank."""
        return self.mesh.agents_of(agents, self.rank)

    def gather(self, payload: bytes) -> list[bytes] | None:
        """Every rank's payload, by rank, on the main one; None elsewhere."""
        return self.everyone.gather(payload)

    def all_gather(self, payload: bytes) -> list[bytes]:
        """Every rank's payload, by rank, on every rank."""
        return self.everyone.all_gather(payload)

    def broadcast(self, payload: bytes | None) -> bytes:
        """The main rank's payload on every rank; what the others bring does not count."""
        return self.everyone.broadcast(payload)

    def broadcast_json(self, value: Any) -> Any:
        """The main rank's plain value on every rank; what the others bring does not count."""
        return self.everyone.broadcast_json(value)

    def any_rank(self, flag: bool) -> bool:
        """Whether any rank says so."""
        return self.everyone.any_rank(flag)

    def send(self, payload: bytes, to: int) -> None:
        """Give another rank a payload; returns when it receives."""
        with rank_errors(f"send: rank {self.rank} lost rank {to}"):
            pass_bytes(payload, lambda part: dist.send(part, to, group=self._control))

    def receive(self, source: int) -> bytes:
        """The next payload that a rank sends to this one."""
        with rank_errors(f"receive: rank {self.rank} lost rank {source}"):
            return pass_bytes(None, lambda part: dist.recv(part, source, group=self._control))

    @torch.no_grad()
    def average_(self, tensor: Tensor) -> None:
        """The mean over the ranks with the same agents, in place and in the same bits on each."""
        self._trainers_together("average_")
        if self.data > 1:
            self._reduce_(tensor, dist.ReduceOp.SUM)
            tensor.div_(self.data)  # gloo knows no mean

    def sum_over_replicas(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The sum over the ranks with the same agents."""
        self._trainers_together("sum_over_replicas")
        return self._reduced(values, dist.ReduceOp.SUM)

    def max_over_replicas(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The largest over the ranks with the same agents."""
        self._trainers_together("max_over_replicas")
        return self._reduced(values, dist.ReduceOp.MAX)

    def barrier(self, where: str) -> None:
        """Wait for all ranks; a RunError names `where` and who did not come in time, or left.

        Evaluators that are early wait before it, for as long as the main rank needs to come.
        """
        self._together("barrier")
        if self.size > 1:
            with rank_errors(f"{where}: rank {self.rank} lost another one"):
                if self._bell is not None:
                    self._ring_or_wait(self._bell)
                dist.monitored_barrier(self._control, self._limit, wait_all_ranks=True)

    def _ring_or_wait(self, bell: Any) -> None:
        """The main rank has come; evaluators wait for that."""
        self._rung += 1
        if self.main:
            bell.set(str(self._rung), b"")
        while not self.trainers.joined and not bell.check([str(self._rung)]):
            time.sleep(POLL)  # and not within torch, where no signal would reach it

    def close(self) -> None:
        """Leave the others, once; a process with several ranks cannot start a World after that."""
        if self._owns_process_group and dist.is_initialized():
            dist.destroy_process_group()
        self._owns_process_group = False

    def _together(self, method: str) -> None:
        """StageError where some ranks do not come."""
        if self.size > 1:
            refuse_in_partial_stage(method)

    def _trainers_together(self, method: str) -> None:
        """The same for those who train; where there are no evaluators, they are all ranks."""
        if self.size > 1:
            refuse_in_partial_stage(method, self.trainers.roles)

    def _reduced(self, values: npt.NDArray[Any], how: Any) -> npt.NDArray[Any]:
        if self.data == 1:
            return values
        found = torch.from_numpy(values.copy()).to(self.device)
        self._reduce_(found, how)
        return found.cpu().numpy()

    def _reduce_(self, tensor: Tensor, how: Any) -> None:
        with rank_errors(f"all-reduce: rank {self.rank} lost one with the same agents"):
            dist.all_reduce(tensor, how, group=self._replicas)


def pass_bytes(payload: bytes | None, pass_on: Callable[[Tensor], object]) -> bytes:
    """Give a payload, or take one (None), as uint8 tensors: length, then chunks; never a pickle."""
    length = torch.tensor([len(payload or b"")])
    pass_on(length)
    buffer = bytearray(int(length)) if payload is None else payload
    for start in range(0, len(buffer), CHUNK):
        part = memoryview(buffer)[start : start + CHUNK]
        # torch wants a buffer that it could write: bytes are copied
        pass_on(torch.frombuffer(bytearray(part) if part.readonly else part, dtype=torch.uint8))
    return bytes(buffer)
