"""The ranks of a run. There always is a World: one process is a world of size 1.

Ranks are a mesh, population × data. Along population they hold different agents, along data the
same ones: rank = population_rank * data + data_rank.

    world = World.start(agents=8)
    mine = world.places(8)  # the agents of this rank
    world.average_(gradients)  # over the ranks with the same agents
    everything = world.gather(payload)  # on the main rank, by rank

Every method but send and receive is for all ranks together: one entered by some of them only waits
for the others until the time-out. With one rank each is trivial, and torch.distributed unused.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from evorl.distributed.accelerator import make_accelerator
from evorl.distributed.launch import launched_ranks, rank_errors
from evorl.errors import ConfigError

CHUNK = 64 * 2**20  # bytes of one message


@dataclass(frozen=True)
class Mesh:
    """The size of each axis."""

    population: int
    data: int

    @property
    def size(self) -> int:
        """All ranks."""
        return self.population * self.data

    def data_lines(self) -> list[list[int]]:
        """The ranks with the same agents, one list for each population rank."""
        return [list(range(i, i + self.data)) for i in range(0, self.size, self.data)]

    def places(self, agents: int, rank: int) -> range:
        """The agents of a rank: next to each other, the first ranks with one more if need be."""
        i = rank // self.data
        each, more = divmod(agents, self.population)
        return range(i * each + min(i, more), (i + 1) * each + min(i + 1, more))

    def owner(self, agents: int, place: int) -> int:
        """The first rank that holds an agent: its data rank is 0."""
        ranks = range(0, self.size, self.data)
        return next(rank for rank in ranks if place in self.places(agents, rank))


def lay_out(
    ranks: int, agents: int, population: int | Literal["auto"] = "auto", data: int = 1
) -> Mesh:
    """The mesh of all ranks; refused unless it uses each of them and gives each an agent."""
    if isinstance(population, str):  # auto
        population = 1 if data > ranks else ranks // max(data, 1)
    if population * data != ranks:
        raise ConfigError(
            f"mesh: population {population} × data {data} takes {population * data} ranks, got"
            f" {ranks}; start as many with accelerate launch --num_processes, or change mesh"
        )
    if population > agents:
        raise ConfigError(
            f"mesh.population: every rank along it needs an agent, got {population} ranks for"
            f" {agents}; start fewer ranks, raise population.size, or raise mesh.data"
        )
    return Mesh(population, data)


class World:
    """This rank, the others, and what they say to each other."""

    @classmethod
    def start(
        cls,
        agents: int,
        population: int | Literal["auto"] = "auto",
        data: int = 1,
        timeout: float = 600.0,
    ) -> "World":
        """Meet the ranks that were launched; a mesh that does not fit them is a ConfigError.

        Args:
            agents: All agents of the run.
            population: Ranks along the population; auto takes all that data leaves.
            data: Ranks that hold the same agents and average their gradients.
            timeout: Seconds that a rank waits for another before it gives up.
        """
        ranks = launched_ranks()
        mesh = lay_out(ranks, agents, population, data)  # nothing is open yet: all ranks can leave
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
        self.main = self.rank == 0
        self._owns_process_group = owns_process_group
        if self.size > 1:
            self._limit = limit = timedelta(seconds=timeout)
            with rank_errors(f"start: rank {self.rank} lost another one"):
                # Control traffic: on the host, also where the default group is NCCL's.
                self._control = dist.new_group(backend="gloo", timeout=limit)
                if self.data > 1:
                    self._replicas, _ = dist.new_subgroups_by_enumeration(  # type: ignore[no-untyped-call]
                        mesh.data_lines(), timeout=limit
                    )

    @property
    def labels(self) -> frozenset[str]:
        """What this rank is, for a stage that says where it runs."""
        kind = "standalone" if self.size == 1 else "distributed"
        return frozenset({kind, f"node.{self.rank}", *(["main"] if self.main else [])})

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

    def places(self, agents: int) -> range:
        """The agents of this rank."""
        return self.mesh.places(agents, self.rank)

    def gather(self, payload: bytes) -> list[bytes] | None:
        """Every rank's payload, by rank, on the main one; None elsewhere."""
        if not self.main:
            self.send(payload, 0)
            return None
        return [payload] + [self.receive(source) for source in range(1, self.size)]

    def share(self, payload: bytes) -> list[bytes]:
        """Every rank's payload, by rank, on every rank."""
        return [
            self._broadcast(payload if source == self.rank else None, source)
            for source in range(self.size)
        ]

    def broadcast(self, payload: bytes | None) -> bytes:
        """The main rank's payload on every rank; what the others bring does not count."""
        return self._broadcast(payload if self.main else None, 0)

    def broadcast_json(self, value: Any) -> Any:
        """The main rank's plain value on every rank; what the others bring does not count."""
        return json.loads(self.broadcast(json.dumps(value).encode()))

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
        if self.data > 1:
            self._reduce_(tensor, dist.ReduceOp.SUM)
            tensor.div_(self.data)  # gloo knows no mean

    def total(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The sum over the ranks with the same agents."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def highest(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The largest over the ranks with the same agents."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def agree(self, flag: bool) -> bool:
        """Whether any rank says so."""
        if self.size == 1:
            return flag
        said = torch.tensor([int(flag)])
        with rank_errors(f"agree: rank {self.rank} lost another one"):
            dist.all_reduce(said, dist.ReduceOp.MAX, group=self._control)
        return bool(said)

    def barrier(self, where: str) -> None:
        """Wait for all ranks; a RunError names `where` and who did not come in time, or left."""
        if self.size > 1:
            with rank_errors(f"{where}: rank {self.rank} lost another one"):
                dist.monitored_barrier(self._control, self._limit, wait_all_ranks=True)

    def close(self) -> None:
        """Leave the others, once; a process with several ranks cannot start a World after that."""
        if self._owns_process_group and dist.is_initialized():
            dist.destroy_process_group()
        self._owns_process_group = False

    def _broadcast(self, payload: bytes | None, source: int) -> bytes:
        if self.size == 1 and payload is not None:
            return payload
        with rank_errors(f"broadcast from rank {source}: rank {self.rank} lost another one"):
            return pass_bytes(
                payload, lambda part: dist.broadcast(part, source, group=self._control)
            )

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
