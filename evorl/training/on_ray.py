"""Ranks that Ray starts: on any nodes of its cluster, and again when a worker or a node dies.

Ray Train finds a place for each rank, tells them of each other as torch's launchers do, and starts
all again when one fails. A worker of Ray runs `evorl train CONFIG --resume auto` in a process of
its own: so what trains is what `accelerate launch` starts, and ends with the same bytes. The main
rank's worker reads metrics.jsonl as it grows, and reports it to Ray.
"""

import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

from evorl.config import RunConfig, dump_config
from evorl.distributed import lay_out
from evorl.errors import ConfigError, RunError
from evorl.reporting import Console
from evorl.runs import METRICS, RunDirectory, read_lines
from evorl.training.actor_setup import mesh_of_ranks

NODE = "ray.io/node-id"  # the label that Ray gives each node
PASSED_ON = ("EVORL_", "ACCELERATE_")  # variables of who launches that ranks get
LOOK = 0.5  # seconds between two looks at metrics.jsonl
REPORTED = ("generation", "env_steps", "evaluation_steps", "updates", "best", "steps_per_second")
CHILD = """
import sys
from evorl.machine import end_with_parent
end_with_parent(int(sys.argv.pop(1)))
from evorl.cli import main
main()
"""


class Ask(NamedTuple):
    """What Ray is asked for."""

    ranks: int
    cpus: int = 1  # of each rank
    gpus: bool = False  # one for each rank
    retries: int = 3  # how often all ranks may start again

    @property
    def each(self) -> dict[str, int]:
        """The resources of a rank, in Ray's words."""
        return {"CPU": self.cpus} | ({"GPU": 1} if self.gpus else {})


def train_on_ray(
    config: RunConfig, ask: Ask, console: Console, flags: Sequence[str] = ()
) -> RunDirectory:
    """Train on ranks that Ray starts; the run's directory.

    It connects to the cluster of RAY_ADDRESS, else to one that runs on this machine, else starts
    one here for as long as it takes. `flags` are further ones of evorl train.
    """
    mesh = mesh_of_ranks(config) | ({"actors": 0} if ask.ranks == 1 else {})
    lay_out(ask.ranks, config.population.size, **mesh)
    folder = Path(config.run.folder).absolute()
    config = config.model_copy(
        update={"run": config.run.model_copy(update={"folder": str(folder)})}
    )
    environment = {k: v for k, v in os.environ.items() if k.startswith(PASSED_ON)}
    if not ask.gpus:
        environment["ACCELERATE_USE_CPU"] = "true"
    told = {
        "config": dump_config(config),
        "flags": list(flags),
        "folder": os.getcwd(),
        "run": str(folder / config.name),
        "environment": environment,
    }
    with _connected(console) as ray:
        main_node = find_places(ask, ray.nodes(), ray.get_runtime_context().get_node_id())
        if main_node is None:
            _check_all_see(ray, folder)
        busy = ask.ranks * ask.cpus - ray.available_resources().get("CPU", 0)
        if busy > 0:
            console.warn(f"{busy:g} of the CPUs are in use: waiting until they are free")
        _fit(told, ask, main_node)
    return RunDirectory(folder / config.name)


def find_places(ask: Ask, nodes: Sequence[Mapping[str, Any]], here: str) -> str | None:
    """The node for the main rank: this one, where it has room; ConfigError if there is too little.

    Its folder is then where the run was started, and there it is found when it starts again: the
    process that restarts ranks is here, too.
    """
    resources = {node["NodeID"]: node["Resources"] for node in nodes if node["Alive"]}
    room = {
        node: int(min(has.get(name, 0) // count for name, count in ask.each.items()))
        for node, has in resources.items()
    }
    if (total := sum(room.values())) < ask.ranks:
        wanted = " and ".join(f"{count} {name}" for name, count in ask.each.items())
        cpus = ", ".join(f"{has.get('CPU', 0):g}" for has in resources.values())
        raise ConfigError(
            f"--ranks: the cluster has room for {total} ranks with {wanted} each, got {ask.ranks}"
            f" (CPUs by node: {cpus}), and Ray would wait for ever; start fewer, or add nodes with"
            " ray start --address"
        )
    return here if room.get(here) else None


@contextmanager
def _connected(console: Console) -> Iterator[Any]:
    """Ray, connected to a cluster until the end."""
    try:
        import ray
        import ray.train.torch
    except ImportError as error:
        why = str(error).partition("\n")[0]
        raise ConfigError(f"--on ray: {why}; pip install 'evorl[ray]'") from None
    try:
        context = ray.init(logging_level="WARNING")
    except (ConnectionError, ValueError, RuntimeError) as error:
        why = str(error).partition("\n")[0]
        what = "check RAY_ADDRESS, and that the cluster runs (ray status)"
        raise RunError(f"--on ray: no connection: {why}; {what}") from None
    try:
        alive = [node for node in ray.nodes() if node["Alive"]]
        url = f", dashboard at http://{context.dashboard_url}" if context.dashboard_url else ""
        console.say(f"ray:          {len(alive)} node{'s' * (len(alive) != 1)}{url}")
        yield ray
    finally:
        ray.shutdown()


def _check_all_see(ray: Any, folder: Path) -> None:
    """RunError if a node does not see the run's folder: the main rank may be on any of them."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    with tempfile.NamedTemporaryFile(dir=_made(folder), prefix=".seen-") as token:
        seen = {
            node["NodeManagerHostname"]: ray.remote(num_cpus=0)(os.path.exists)
            .options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
            .remote(token.name)
            for node in ray.nodes()
            if node["Alive"]
        }
        blind = [name for name, answer in seen.items() if not ray.get(answer)]
    if blind:
        raise RunError(
            f"run.folder: {folder} is not seen by {', '.join(blind)}, and the main rank may start"
            " again there, as this node has no CPUs for it; put it on a disk that all nodes share,"
            " or launch from a node with CPUs"
        )


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"run.folder: {folder} cannot be made: {error.strerror}") from None
    return folder


def _fit(told: dict[str, Any], ask: Ask, main_node: str | None) -> None:
    """Start the ranks and wait for them; a RunError says which has failed once too often."""
    from ray.train import (
        FailureConfig,
        LoggingConfig,
        RunConfig as RayRun,
        ScalingConfig,
        TrainingFailedError,
    )
    from ray.train.torch import TorchConfig, TorchTrainer

    pinned = [{NODE: main_node}] + [{} for _ in range(ask.ranks - 1)] if main_node else None
    with tempfile.TemporaryDirectory(prefix="evorl-ray-") as folder:  # Ray's own notes
        trainer = TorchTrainer(
            be_rank,
            train_loop_config=told,
            torch_config=TorchConfig(backend="gloo"),  # of workers: it opens the ranks' store
            scaling_config=ScalingConfig(
                num_workers=ask.ranks,
                use_gpu=ask.gpus,
                resources_per_worker=ask.each,
                label_selector=pinned,
            ),
            run_config=RayRun(
                name=Path(told["run"]).name,
                storage_path=folder,
                failure_config=FailureConfig(max_failures=ask.retries),
                callbacks=[_make_watch(ask.retries)],
                logging_config=LoggingConfig(log_level="CRITICAL"),
            ),
        )
        try:
            _call_in_thread(trainer.fit)
        except TrainingFailedError as error:
            which = _describe(getattr(error, "worker_failures", {})) or str(error)
            raise RunError(
                f"--on ray: {which}, after {ask.retries} restarts; look for its error above. What"
                " is launched again resumes"
            ) from None


def _call_in_thread(call: Callable[[], Any]) -> Any:
    """Call, and wait for it; in the main thread Ray would take Ctrl-C for itself."""
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done.result()


def _make_watch(retries: int) -> Any:
    """Says in the log why all ranks start again."""
    from ray.train import UserCallback

    class Watch(UserCallback):  # type: ignore[misc]
        failures = 0

        def after_exception(self, run_context: Any, worker_exceptions: Any) -> None:
            self.failures += 1
            if self.failures <= retries:
                what = f"all ranks start again and resume ({self.failures} of {retries} times)"
                print(f"warning: {_describe(worker_exceptions)}; {what}", file=sys.stderr)

    return Watch()


def _describe(failures: Mapping[int, BaseException]) -> str:
    """Which ranks have failed, and why."""
    said = []
    for rank, error in failures.items():
        lost = getattr(error, "health_check_failure", None)  # and the worker could say nothing
        why = str(lost).partition("\n")[0] if lost else str(error).strip().splitlines()[-1]
        said.append(f"rank {rank} failed ({why.rstrip('.')})")
    return ", ".join(said)


def be_rank(told: Mapping[str, Any]) -> None:
    """In a worker of Ray: the process of a rank, and what it has to report, until it ends."""
    import ray.train

    logging.getLogger().setLevel(logging.WARNING)  # Ray would print every report
    main = ray.train.get_context().get_world_rank() == 0
    process = _start(told)
    try:
        path = Path(told["run"])
        news = _new_generations(path / METRICS, process) if main else repeat(None)
        reporting = threading.Thread(target=_report, args=(news, path.name), daemon=True)
        reporting.start()
        if code := process.wait():
            raise RuntimeError(f"evorl train ended with exit code {code}")
        reporting.join()
    finally:
        process.kill()


def _start(told: Mapping[str, Any]) -> "subprocess.Popen[bytes]":
    """evorl train as a launcher starts it: Ray has set what torch.distributed wants to know."""
    # The store is that of the workers, who have met there before: as after torchrun's restart.
    store = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "1"}
    environment = os.environ | told["environment"] | store
    environment.pop("ACCELERATE_TORCH_DEVICE", None)
    words = [str(os.getpid()), "train", "/dev/stdin", "--resume", "auto", *told["flags"]]
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, *words],
        stdin=subprocess.PIPE,
        env=environment,
        cwd=told["folder"] if os.path.isdir(told["folder"]) else None,
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as stream:
        stream.write(told["config"].encode())
    return process


def _new_generations(
    path: Path, process: "subprocess.Popen[bytes]"
) -> Iterator[dict[str, Any] | None]:
    """What metrics.jsonl has that it had not, until the process has ended; None at last."""
    newest, seen, ended = -1, read_lines(path), False
    if seen:  # of a run that resumes: those were reported before
        newest = json.loads(seen[-1])["generation"]
    while not ended:
        ended = process.poll() is not None  # before the last look
        before, seen = seen, read_lines(path)
        for line in map(json.loads, seen if seen != before else ()):
            if line["generation"] > newest:
                newest = line["generation"]
                yield line
        time.sleep(0 if ended else LOOK)
    yield None


def _report(news: Iterator[dict[str, Any] | None], run: str) -> None:
    """Tell Ray of each generation, on all workers together: it takes what the main rank says."""
    import ray.train
    from ray.exceptions import RayError
    from ray.train.collective import broadcast_from_rank_zero
    from ray.util.metrics import Gauge

    gauges = {
        name: Gauge(f"evorl_{name}", "Of an evorl run.", tag_keys=("run",)) for name in REPORTED
    }
    with suppress(RayError):  # all workers are ended
        while (line := broadcast_from_rank_zero(next(news))) is not None:
            metrics = {name: line[name] for name in REPORTED}
            fitness = [value for value in line["fitness"] if value is not None]
            metrics["mean_fitness"] = sum(fitness) / len(fitness) if fitness else None
            for name, gauge in gauges.items():
                if metrics[name] is not None:
                    gauge.set(metrics[name], tags={"run": run})
            ray.train.report(metrics)
