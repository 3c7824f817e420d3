"""Run by every rank of a launch: worlds.py CASE FOLDER. Says what it finds in FOLDER/<name>.<rank>.

The checks are true of every World, whatever its size and mesh.
"""

import os
import signal
import sys
import time
import traceback
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import torch
import torch.distributed as dist
from accelerate import Accelerator

from evorl.algorithms.dqn import DQN
from evorl.cli.errors import one_line_errors
from evorl.config import parse_config
from evorl.distributed import (
    barrier as meeting,
)
from evorl.distributed import (
    cores_per_rank,
    let_main_speak_first,
    payloads,
    threads_are_given,
)
from evorl.distributed.world import World
from evorl.envs import EnvSpec
from evorl.errors import EvorlError
from evorl.experience import Samples, split_groups
from evorl.genome import Architecture
from evorl.networks.layout import Problem
from evorl.pipeline.context import Context
from evorl.population.population import Population
from evorl.reporting.console import Console
from evorl.runs.directory import RunDirectory
from evorl.training.build import make_parts, make_stages
from evorl.training.trainer import train

AGENTS = 5


def check_layout(world, folder):
    assert world.rank == world.population_rank * world.data + world.data_rank
    assert world.rank == int(os.environ.get("RANK", 0))
    assert world.main == (world.rank == 0)
    assert world.device == torch.device("cpu")
    held = {}
    for rank, said in enumerate(world.share(bytes(world.places(AGENTS)))):
        for place in said:
            held.setdefault(place, []).append(rank)
    assert sorted(held) == list(range(AGENTS))
    for place, ranks in held.items():
        assert world.owner(AGENTS, place) == ranks[0]
        assert ranks == list(range(ranks[0], ranks[0] + world.data))


def check_collectives(world, folder):
    def payload(rank):
        return b"" if rank % 2 else bytes([rank]) * (rank + 3)

    everybody = [payload(rank) for rank in range(world.size)]
    assert world.share(payload(world.rank)) == everybody
    gathered = world.gather(payload(world.rank))
    assert gathered == (everybody if world.main else None)
    assert world.broadcast(b"from the main rank" if world.main else None) == b"from the main rank"
    assert world.broadcast(f"from {world.rank}".encode()) == b"from 0"
    assert world.broadcast(b"") == b""


def check_send_and_receive(world, folder):
    for source in range(world.size):
        for to in range(world.size):
            payload = f"{source} to {to}".encode() * source
            if world.rank == source != to:
                world.send(payload, to)
            elif world.rank == to != source:
                assert world.receive(source) == payload
    for wrong in (world.rank, -1, world.size):
        for exchange in (lambda to: world.send(b"", to), world.receive):
            try:
                exchange(wrong)
            except ValueError:
                continue
            raise AssertionError("no ValueError")


def check_chunks(world, folder):
    usual, payloads.CHUNK = payloads.CHUNK, 7
    try:
        for length in (0, 1, 6, 7, 8, 14, 15, 1000):
            own = bytes((i + world.rank) % 256 for i in range(length + world.rank))
            shared = world.share(own)
            assert [len(payload) for payload in shared] == [length + i for i in range(world.size)]
            assert shared[world.rank] == own
            assert shared[-1][:1] == (bytes([world.size - 1]) if shared[-1] else b"")
            assert world.gather(own) == (shared if world.main else None)
            assert world.broadcast(own) == shared[0]
    finally:
        payloads.CHUNK = usual


def check_average(world, folder):
    line = range(world.rank - world.data_rank, world.rank - world.data_rank + world.data)
    tensor = torch.full((2, 3), float(world.rank))
    world.average_(tensor)
    assert tensor.eq(sum(line) / world.data).all()
    counts = torch.tensor([world.rank, 1])
    world.sum_(counts)
    assert counts.tolist() == [sum(line), world.data]
    largest = torch.tensor([world.rank, -world.rank])
    world.max_(largest)
    assert largest.tolist() == [line[-1], -line[0]]

    generator = torch.Generator().manual_seed(world.rank)
    own = torch.randn(1001, generator=generator)
    mean = own.clone().requires_grad_()
    world.average_(mean)
    means = world.share(mean.detach().numpy().tobytes())
    owns = [
        torch.frombuffer(bytearray(data), dtype=torch.float32)
        for data in world.share(own.numpy().tobytes())
    ]
    assert all(means[rank] == means[world.rank] for rank in line)  # the same bits
    torch.testing.assert_close(mean.detach(), torch.stack([owns[i] for i in line]).mean(0))
    if world.data == 1:
        assert mean.equal(own)


def check_agree(world, folder):
    assert not world.agree(False)
    assert world.agree(True)
    for rank in range(world.size):
        assert world.agree(world.rank == rank)


def check_meet(world, folder):
    for turn in range(20):
        (folder / f"met-{turn}.{world.rank}").touch()
        world.meet(f"turn {turn}")
        assert len(list(folder.glob(f"met-{turn}.*"))) == world.size
        world.meet("before the next")
        (folder / f"met-{turn}.{world.rank}").unlink()
        world.meet("again")


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]


def say(folder, name, text):
    (folder / f"{name}.{os.environ['RANK']}").write_text(str(text))


def run_checks(world, folder):
    mesh = f"{world.population}x{world.data}"
    for check in CHECKS:
        try:
            check(world, folder)
            outcome = "ok"
        except Exception:
            outcome = traceback.format_exc()
        say(folder, f"{mesh}-{check.__name__}", outcome)


def failure(call, *arguments, **options):
    """The error that a call raises, as `Type: message`."""
    try:
        call(*arguments, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def case_two(folder):
    """Refusals, each of which leaves the rank free to go on, and then the checks."""
    threads = os.environ["OMP_NUM_THREADS"]
    given, share = threads_are_given(), cores_per_rank(8)
    say(folder, "threads", f"{threads}, given: {given}, of 8 cores: {share}")
    for name, mesh in {
        "population": {"agents": 4, "population": 3},
        "data": {"agents": 4, "data": 3},
        "agents": {"agents": 1},
    }.items():
        say(folder, f"refused-{name}", failure(World.start, **mesh))
    for name, value in {"text": "two", "nothing": "", "zero": "0", "more": "3"}.items():
        os.environ["WORLD_SIZE"] = value
        say(folder, f"refused-{name}", failure(World.start, 4, population=2))
    os.environ["WORLD_SIZE"] = "2"
    port = os.environ.pop("MASTER_PORT")
    say(folder, "refused-port", failure(World.start, 4))
    os.environ["MASTER_PORT"] = port
    assert not dist.is_initialized()

    worlds = [World.start(AGENTS), World.start(AGENTS, data=2)]
    for world in worlds:
        run_checks(world, folder)
    worlds[0].meet("the end")
    for world in worlds * 2:
        world.close()
    say(folder, "closed", dist.is_initialized())
    say(folder, "again", failure(World.start, AGENTS))


def case_four(folder):
    """Every mesh of four ranks, and what happens to ranks that do not come."""
    meshes = [{}, {"data": 2}, {"population": 1, "data": 4}]
    worlds = [World.start(AGENTS, timeout=60, **mesh) for mesh in meshes]
    for world in worlds:
        run_checks(world, folder)
    rank = worlds[0].rank
    worlds[0].meet("before ranks are late")
    impatient = World.start(AGENTS, data=4, timeout=2)
    time.sleep(4 if rank in (1, 3) else 0)
    say(folder, "late", failure(impatient.meet, "the end of generation 7"))
    worlds[0].meet("before one does not come")
    if rank != 2:
        say(folder, "late-average", failure(impatient.average_, torch.zeros(3)))
    worlds[0].meet("the end")
    worlds[0].close()


def case_killed(folder):
    """Rank 1 dies while rank 0 waits for it."""
    world = World.start(2)
    world.meet("start")
    if not world.main:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher's: time to say what was seen
    say(folder, "lost", failure(world.gather, b"payload"))
    world.close()


def case_stopped(folder):
    """Rank 1 lives, but does nothing any more, while rank 0 waits for it in one way or another."""
    meeting.PATIENCE = 1.0
    ways = {
        "broadcast": lambda world: world.broadcast(b"payload"),
        "agree": lambda world: world.agree(True),
        "gather": lambda world: world.gather(b"payload"),
        "send": lambda world: world.send(b"payload", 1),
        "average": lambda world: world.average_(torch.zeros(3)),
        "meet": lambda world: world.meet("the end"),
    }
    say(folder, "process", os.getpid())
    patient = World.start(2, timeout=60)
    patient.meet("start")
    worlds = {name: World.start(2, data=2, timeout=2) for name in ways}
    patient.meet("all are made")
    if patient.main:
        stopped = int((folder / "process.1").read_text())
        try:
            while psutil.Process(stopped).status() != psutil.STATUS_STOPPED:
                time.sleep(0.01)
            for name, way in ways.items():
                say(folder, name, failure(way, worlds[name]))
        finally:
            os.kill(stopped, signal.SIGKILL)
        sys.exit(2)
    os.kill(os.getpid(), signal.SIGSTOP)


def case_refused(folder):
    """As the command line does it, with a main rank that is slow to speak."""
    Accelerator()  # without a GPU it takes each of the ranks for the only one
    try:
        World.start(2)
    except EvorlError as error:
        say(folder, "refused", f"{type(error).__name__}: {error}")
        let_main_speak_first()
        time.sleep(1)
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def case_nodes(folder):
    """A rank dies on another machine, where this one's launcher does not see it."""
    world = World.start(AGENTS)
    run_checks(world, folder)
    world.meet("start")
    if not world.main:
        os.kill(os.getpid(), signal.SIGKILL)
    say(folder, "lost", failure(world.gather, b"payload"))
    world.close()
    sys.exit(1)  # after a success its launcher would wait for the other one, for five minutes


def case_gradients(folder):
    """Two ranks with the same agents, against one population that has both batches."""
    sys.path.insert(0, str(Path(__file__).parent.parent.parent))
    from tests.reference import genome, random_samples

    shapes = [
        Architecture((16, 12)),
        Architecture((9,), "tanh", True, True),
        Architecture((40, 40)),
    ]
    world = World.start(len(shapes), data=2)
    problem, ours, theirs = Problem(6, 3), [], []
    for i, shape in enumerate(shapes):
        own = {"lr": 1e-3 * (i + 1), "max_grad_norm": 0.05 * i}
        ours.append(genome(i, shape, batch_size=8, **own))
        theirs.append(genome(i, shape, batch_size=16, **own))
    options = {"seed": 1, "dtype": torch.float64}
    population = Population(ours, problem, DQN(), reduce=world.average_, **options)
    alone = Population(theirs, problem, DQN(), **options)
    updates = np.full(len(shapes), 10)
    for number in range(10):
        plans = population.plans(updates)
        both = [random_samples(plans, problem, np.random.default_rng((number, r))) for r in (0, 1)]
        population.learn(both[world.rank], plans)
        parts = [split_groups(samples, plans) for samples in both]
        joined = [
            Samples(*(torch.cat(pair, 2).flatten(0, 2) for pair in zip(*group, strict=True)))
            for group in zip(*parts, strict=True)
        ]
        whole = Samples(*(torch.cat(fields) for fields in zip(*joined, strict=True)))
        alone.learn(whole._replace(weight=whole.weight / 2), alone.plans(updates))
    differences = [
        (mine[name] - yours[name]).abs().max().item()
        for i in range(len(shapes))
        for mine, yours in zip(population.state(i)[:4], alone.state(i)[:4], strict=True)
        for name in mine
    ]
    assert population.state(0).steps == 100
    say(folder, "difference", str(max(differences)))
    world.close()


SMALL = {
    "env": {"id": "CartPole-v1", "num_envs": 2, "backend": "sync"},
    "algorithm": {"learning_starts": 10, "batch_size": 8},
    "network": {"hidden": [8]},
    "population": {"size": 4},
    "replay": {"share": "rank", "capacity": 500},
    "evaluation": {"every": 30, "episodes": 2, "confirm_episodes": 2, "max_steps": 50},
    "compile": False,
}


def case_spoiled(folder):
    """One moment of one agent is another on the second rank, after two generations."""
    rebuild, made = Population.rebuild, []

    def spoiled(population, *arguments):
        rebuild(population, *arguments)
        made.append(population)
        if os.environ["RANK"] == "1" and len(made) == 4:  # when made, spread, and spread twice more
            population.groups[0].v[0, 0] += 1

    Population.rebuild = spoiled
    with one_line_errors():
        train(parse_config(SMALL, [f"run.folder={folder}", "budget.env_steps=2000"]))


def case_own_replay(folder):
    """What each rank learns from is what it has collected itself, and nobody else."""
    config = parse_config(SMALL)
    seen = []
    with ExitStack() as stack:
        world = World.start(4)
        stack.callback(world.close)
        parts = make_parts(config, world, EnvSpec("CartPole-v1", "sync"), stack)
        directory = RunDirectory(folder)
        stages = make_stages(config, world, parts, directory, Console(quiet=True))
        draw, context = stages.learn.loader.draw, Context(len(world.places(4)))

        def watched(plans):
            samples = draw(plans)
            seen.extend(row.numpy().tobytes() for row in samples.obs)
            return samples

        stages.learn.loader.draw = watched
        for _ in range(60):
            stages.collect(context)
            stages.learn(context)
        stored = stages.learn.buffer.state_dict()["obs"]
        collected = {row.numpy().tobytes() for row in stored}
        assert len(seen) > 1000
        assert set(seen) <= collected
        (folder / f"collected-{world.rank}").write_bytes(b"".join(sorted(collected)))


if __name__ == "__main__":
    globals()[f"case_{sys.argv[1]}"](Path(sys.argv[2]))
