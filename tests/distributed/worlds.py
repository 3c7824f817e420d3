"""Run by every rank of a launch: worlds.py CASE FOLDER. Says what it finds in FOLDER/<name>.<rank>.

The checks are true of every World, whatever its size and mesh.
"""

import os
import signal
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import torch
import torch.distributed as dist
from accelerate import Accelerator

from evorl.cli import one_line_errors
from evorl.config import parse_config
from evorl.distributed import launcher, world as world_module
from evorl.distributed.launcher import local_ranks, read_on_main_rank
from evorl.distributed.world import World
from evorl.envs import EnvSpec
from evorl.errors import ConfigError, RunError
from evorl.experience import Samples, split_groups
from evorl.genome import Architecture
from evorl.machine import threads_are_given
from evorl.networks.spec import NetworkSpec
from evorl.pipeline.training_context import TrainingContext
from evorl.population.population import Population
from evorl.reporting.console import Console
from evorl.runs.directory import RunDirectory
from evorl.training.build import Parts, Stages
from evorl.training.signals import ending_on_signals
from evorl.training.trainer import train

AGENTS = 5


def check_layout(world, folder):
    assert world.data_rank == world.rank % world.data
    assert world.rank == int(os.environ.get("RANK", 0))
    assert world.main == (world.rank == 0)
    assert world.device == torch.device("cpu")
    held = {}
    for rank, said in enumerate(world.all_gather(bytes(world.own_agents(AGENTS)))):
        for place in said:
            held.setdefault(place, []).append(rank)
    assert sorted(held) == list(range(AGENTS))
    for place, ranks in held.items():
        assert world.mesh.owner(AGENTS, place) == ranks[0]
        assert ranks == list(range(ranks[0], ranks[0] + world.data))


def check_collectives(world, folder):
    def payload(rank):
        return b"" if rank % 2 else bytes([rank]) * (rank + 3)

    everybody = [payload(rank) for rank in range(world.size)]
    assert world.all_gather(payload(world.rank)) == everybody
    gathered = world.gather(payload(world.rank))
    assert gathered == (everybody if world.main else None)
    assert world.broadcast(b"from the main rank" if world.main else None) == b"from the main rank"
    assert world.broadcast(f"from {world.rank}".encode()) == b"from 0"
    assert world.broadcast(b"") == b""
    assert world.broadcast_json({"from": world.rank}) == {"from": 0}


def check_send_and_receive(world, folder):
    for source in range(world.size):
        for to in range(world.size):
            payload = f"{source} to {to}".encode() * source
            if world.rank == source != to:
                world.send(payload, to)
            elif world.rank == to != source:
                assert world.receive(source) == payload


def check_chunks(world, folder):
    usual, world_module.CHUNK = world_module.CHUNK, 7
    try:
        for length in (0, 1, 6, 7, 8, 14, 15, 1000):
            own = bytes((i + world.rank) % 256 for i in range(length + world.rank))
            shared = world.all_gather(own)
            assert [len(payload) for payload in shared] == [length + i for i in range(world.size)]
            assert shared[world.rank] == own
            assert shared[-1][:1] == (bytes([world.size - 1]) if shared[-1] else b"")
            assert world.gather(own) == (shared if world.main else None)
            assert world.broadcast(own) == shared[0]
    finally:
        world_module.CHUNK = usual


def check_average(world, folder):
    line = range(world.rank - world.data_rank, world.rank - world.data_rank + world.data)
    tensor = torch.full((2, 3), float(world.rank))
    world.average_(tensor)
    assert tensor.eq(sum(line) / world.data).all()
    assert world.sum_over_replicas(np.array([world.rank, 1])).tolist() == [sum(line), world.data]
    highest = world.max_over_replicas(np.array([world.rank, -world.rank]))
    assert highest.tolist() == [line[-1], -line[0]]

    generator = torch.Generator().manual_seed(world.rank)
    own = torch.randn(1001, generator=generator)
    mean = own.clone().requires_grad_()
    world.average_(mean)
    means = world.all_gather(mean.detach().numpy().tobytes())
    owns = [
        torch.frombuffer(bytearray(data), dtype=torch.float32)
        for data in world.all_gather(own.numpy().tobytes())
    ]
    assert all(means[rank] == means[world.rank] for rank in line)  # the same bits
    torch.testing.assert_close(mean.detach(), torch.stack([owns[i] for i in line]).mean(0))
    if world.data == 1:
        assert mean.equal(own)


def check_any_rank(world, folder):
    assert not world.any_rank(False)
    assert world.any_rank(True)
    for rank in range(world.size):
        assert world.any_rank(world.rank == rank)


def check_barrier(world, folder):
    for turn in range(20):
        (folder / f"came-{turn}.{world.rank}").touch()
        world.barrier(f"turn {turn}")
        assert len(list(folder.glob(f"came-{turn}.*"))) == world.size
        world.barrier("before the next")
        (folder / f"came-{turn}.{world.rank}").unlink()
        world.barrier("again")


def check_labels(world, folder):
    everywhere = {"standalone" if world.size == 1 else "distributed", f"node.{world.rank}"}
    everywhere |= {"trainer", "learner", "evaluator"}  # where there are no evaluators, all are both
    assert world.labels == everywhere | ({"main"} if world.rank == 0 else set())


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
    """Refusals, after each of which a rank can try again; checks; and then rank 1 is lost."""
    threads = os.environ["OMP_NUM_THREADS"]
    say(folder, "threads", f"{threads}, given: {threads_are_given()}, ranks: {local_ranks()}")
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
    say(folder, "read", read_on_main_rank(lambda: f"read by rank {os.environ['RANK']}"))

    for world in (World.start(AGENTS), World.start(AGENTS, data=2)):
        run_checks(world, folder)
    lose_rank_1(folder)


def lose_rank_1(folder):
    """Rank 1 lives but does nothing any more, while rank 0 waits for it in all ways; then it dies.

    A group that has timed out is of no more use: each way has its own, and all wait at once.
    """
    ways = {
        "broadcast": lambda world: world.broadcast(b"payload"),
        "any_rank": lambda world: world.any_rank(True),
        "gather": lambda world: world.gather(b"payload"),
        "send": lambda world: world.send(b"payload", 1),
        "average": lambda world: world.average_(torch.zeros(3)),
        "barrier": lambda world: world.barrier("the end"),
    }
    say(folder, "process", os.getpid())
    patient = World.start(2, timeout=60)
    worlds = {name: World.start(2, data=2, timeout=2) for name in ways}
    patient.barrier("all are made")
    if not patient.main:
        os.kill(os.getpid(), signal.SIGSTOP)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher's: time to say what was seen
    stopped = psutil.Process(int((folder / "process.1").read_text()))
    try:
        while stopped.status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        with ThreadPoolExecutor(len(ways)) as threads:
            waits = {name: threads.submit(failure, ways[name], worlds[name]) for name in ways}
        for name, wait in waits.items():
            say(folder, name, wait.result())
    finally:
        stopped.kill()
    say(folder, "killed-barrier", failure(patient.barrier, "the end"))
    say(folder, "killed-gather", failure(patient.gather, b"payload"))


def teams(world):
    """Who is on which team, and what they say to each other while the other one does the same."""
    team = world.trainers if world.trainers.joined else world.evaluators
    own = f"rank {world.rank}".encode()
    found = [
        sorted(world.labels & {"main", "trainer", "evaluator"}),
        [word.decode() for word in team.all_gather(own)],
        team.broadcast(own).decode(),
        [word.decode() for word in team.gather(own) or []],
        team.any_rank(world.rank == 3),
        world.any_rank(world.rank == 3),
        list(world.own_agents(AGENTS)),
    ]
    tensor = torch.full((2,), float(world.rank))
    if world.trainers.joined:
        world.average_(tensor)
    return [*found, tensor.tolist()]


def case_four(folder):
    """Every mesh of four ranks, ranks that do not come, and one that ends with its own error."""
    meshes = [{}, {"data": 2}, {"population": 1, "data": 4}]
    worlds = [World.start(AGENTS, timeout=60, **mesh) for mesh in meshes]
    for world in worlds:
        run_checks(world, folder)
    say(folder, "teams", teams(World.start(AGENTS, data=2, evaluators=2, timeout=60)))
    first, rank = worlds[0], worlds[0].rank
    impatient = [World.start(AGENTS, data=4, timeout=2) for _ in range(2)]
    first.barrier("before ranks are late")
    if rank in (0, 2):
        say(folder, "late", failure(impatient[0].barrier, "the end of generation 7"))
    first.barrier("before those that are late come")
    if rank in (1, 3):
        say(folder, "late", failure(impatient[0].barrier, "the end of generation 7"))
    if rank != 2:
        say(folder, "late-average", failure(impatient[1].average_, torch.zeros(3)))
    first.barrier("the end")
    launcher.SPEAKS_AFTER = 1.0
    with one_line_errors(), ending_on_signals():  # as a command does
        if rank != 3:
            first.barrier("rank 3 does not come")
        for world in (*worlds, *impatient) * 2:
            world.close()
        say(folder, "closed", dist.is_initialized())
        say(folder, "again", failure(World.start, AGENTS))
        raise RunError("only rank 3 has this to say")


def case_refused(folder):
    """As a command ends; the main rank speaks when the other one has had time to."""
    Accelerator()  # without a GPU it takes each of the ranks for the only one
    with one_line_errors():
        try:
            World.start(2)
        except ConfigError as error:
            say(folder, "refused", error)
            while len(list(folder.glob("refused.*"))) < 2:
                time.sleep(0.01)
            raise


def case_nodes(folder):
    """A rank dies on another machine, where this one's launcher does not see it."""
    world = World.start(AGENTS)
    run_checks(world, folder)
    world.barrier("start")
    if not world.main:
        os.kill(os.getpid(), signal.SIGKILL)
    say(folder, "lost", failure(world.gather, b"payload"))
    world.close()
    sys.exit(1)  # after a success its launcher would wait for the other one, for five minutes


def case_gradients(folder):
    """Two ranks with the same agents, against one population that has both batches."""
    sys.path.insert(0, str(Path(__file__).parent.parent.parent))
    from tests.reference import genome, population_of, random_samples

    shapes = [
        Architecture((16, 12)),
        Architecture((9,), "tanh", True, True),
        Architecture((40, 40)),
    ]
    world = World.start(len(shapes), data=2)
    spec, ours, theirs = NetworkSpec(6, 3), [], []
    for i, shape in enumerate(shapes):
        own = {"lr": 1e-3 * (i + 1), "max_grad_norm": 0.05 * i}
        ours.append(genome(i, shape, batch_size=8, **own))
        theirs.append(genome(i, shape, batch_size=16, **own))
    options = {"seed": 1, "dtype": torch.float64}
    population = population_of(ours, spec, average=world.average_, **options)
    alone = population_of(theirs, spec, **options)
    updates = np.full(len(shapes), 10)
    for number in range(10):
        requests = population.requests(updates)
        both = [random_samples(requests, spec, np.random.default_rng((number, r))) for r in (0, 1)]
        population.learn(both[world.rank], requests)
        parts = [split_groups(samples, requests) for samples in both]
        joined = [
            Samples(*(torch.cat(pair, 2).flatten(0, 2) for pair in zip(*group, strict=True)))
            for group in zip(*parts, strict=True)
        ]
        whole = Samples(*(torch.cat(fields) for fields in zip(*joined, strict=True)))
        alone.learn(whole._replace(weight=whole.weight / 2), alone.requests(updates))
    differences = [
        (mine[name] - yours[name]).abs().max().item()
        for i in range(len(shapes))
        for mine, yours in zip(population.state(i)[:4], alone.state(i)[:4], strict=True)
        for name in mine
    ]
    assert population.state(0).updates == 100
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
        if population.size == 1:  # a candidate for the best, to be confirmed
            return
        made.append(population)
        if os.environ["RANK"] == "1" and len(made) == 4:  # when made, spread, and spread twice more
            population.groups[0].matrices.v[0, 0] += 1

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
        parts = Parts(config, world, EnvSpec("CartPole-v1", "sync"), stack)
        directory = RunDirectory(folder)
        stages = Stages(config, world, parts, directory, Console(quiet=True))
        draw, context = stages.learn.loader.draw, TrainingContext(len(world.own_agents(4)))

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
