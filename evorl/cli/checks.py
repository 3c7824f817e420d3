"""What `evorl doctor` checks, each by trying it out: functions that return a Finding.

`python -m evorl.cli.checks` is what each of the two ranks runs.
"""

import importlib
import importlib.metadata
import importlib.util
import netrc
import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

DISK, MEMORY = 2**30, 2**30  # bytes below which a run is likely to fail
COMPILER_SECONDS = 15
# What torch.compile includes and links; without Python's headers it fails, too.
PROGRAM = "#include <Python.h>\n#include <omp.h>\nint threads() { return omp_get_max_threads(); }\n"
WANDB = "api.wandb.ai"
MET = "two ranks have met"
MEETING_SECONDS = 60.0
# As configs/accelerate/cpu.yaml, which an installed evorl does not have at hand.
LAUNCH = "distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: 'no'\n"
LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
ADVICE = "see docs/distributed.md; training in one process works without"


class Finding(NamedTuple):
    """One line of the report."""

    state: Literal["ok", "missing", "broken"]
    what: str  # what is there, or what happened
    advice: str = ""  # what to do, unless it is ok


class Check(NamedTuple):
    """One question to the machine."""

    name: str
    run: Callable[[], Finding]
    needed: bool  # training fails without
    package: str = ""  # that must be installed for it
    without: str = ""  # what fails if it is not, and how to install it
    install: str = ""


def check_torch() -> Finding:
    """PyTorch, by a gradient on the device that training would take."""
    torch = importlib.import_module("torch")
    device = torch.accelerator.current_accelerator(check_available=True)
    value = torch.ones(2, device=device or "cpu", requires_grad=True)
    (value * value).sum().backward()
    if value.grad.tolist() != [2.0, 2.0]:
        return Finding("broken", f"{torch.__version__} computes wrongly", "reinstall it")
    if device is not None:
        count = torch.accelerator.device_count()
        return Finding("ok", f"{torch.__version__}, {count} × {device.type}")
    built = torch.version.cuda
    if built and shutil.which("nvidia-smi"):
        return Finding(
            "broken",
            f"{torch.__version__} sees no GPU, though the machine seems to have one",
            f"install a driver for CUDA {built}, or a build of torch for the driver",
        )
    return Finding("ok", f"{torch.__version__}, no GPU: trains on {_cores()} CPU cores")


def check_accelerate() -> Finding:
    """Accelerate, and its launcher."""
    importlib.import_module("accelerate")
    importlib.import_module("accelerate.commands.launch")
    return Finding("ok", _version("accelerate"))


def check_compiler() -> Finding:
    """A C++ compiler, by a program that includes what torch.compile does."""
    mac = sys.platform == "darwin"
    compiler = shutil.which(os.environ.get("CXX", "clang++" if mac else "g++"))
    if compiler is None:
        what = "no C++ compiler: long runs are not compiled, and slower"
        return Finding("missing", what, "install g++ (Debian: apt install g++), or set CXX")
    flags = ["-shared", "-fPIC", *([] if mac else ["-fopenmp"]), "-xc++", "-"]
    command = [compiler, f"-I{sysconfig.get_paths()['include']}", *flags]
    try:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [*command, "-o", f"{folder}/program.so"],
                input=PROGRAM,
                capture_output=True,
                text=True,
                timeout=COMPILER_SECONDS,
            )
    except subprocess.TimeoutExpired:
        return Finding("broken", f"{compiler} did not end", "set compile: false in your runs")
    if done.returncode == 0:
        return Finding("ok", f"{compiler}, for torch.compile")
    error = next((line for line in done.stderr.splitlines() if "error" in line), "it failed")
    advice = "install Python's headers (Debian: apt install python3-dev) and OpenMP"
    return Finding("broken", f"{compiler}: {error.strip()}", advice)


def check_environment(env_id: str) -> Finding:
    """Gymnasium and what the environment needs, by a step."""
    gymnasium = importlib.import_module("gymnasium")
    env = gymnasium.make(env_id)
    try:
        env.reset(seed=0)
        env.step(env.action_space.sample())
    finally:
        env.close()
    return Finding("ok", f"{env_id} runs in Gymnasium {_version('gymnasium')}")


def check_envpool() -> Finding:
    """EnvPool, by a step of CartPole."""
    envpool = importlib.import_module("envpool")
    env = envpool.make_gymnasium("CartPole-v1", num_envs=1)
    env.reset()
    env.close()
    return Finding("ok", _version("envpool"))


def check_wandb() -> Finding:
    """Weights & Biases, by its login; nothing is sent to find out."""
    importlib.import_module("wandb")
    version = _version("wandb")
    if logged_in():
        return Finding("ok", f"{version}, logged in")
    return Finding("missing", f"{version}, not logged in", "wandb login, or use it offline only")


def logged_in() -> bool:
    """Whether there is a key for the W&B server, in the environment or in the netrc file."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "")).netloc or WANDB
    given = os.environ.get("NETRC")
    for file in [Path(given)] if given else [Path.home() / name for name in (".netrc", "_netrc")]:
        try:
            if host in netrc.netrc(file).hosts:
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False


def check_disk(folder: Path = Path("runs")) -> Finding:
    """Room for runs, where they are written by default."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    where = there.absolute()
    if not os.access(there, os.W_OK):
        return Finding("broken", f"{where} cannot be written", "set run.folder to one that can")
    free = shutil.disk_usage(there).free
    what = f"{free / 2**30:,.1f} GiB free in {where}"
    if free < DISK:
        return Finding("broken", what, "make room, or set run.folder to another disk")
    return Finding("ok", what)


def check_memory() -> Finding:
    """Free memory, as far as the system tells."""
    free = free_memory()
    if free is None:
        return Finding("ok", "the system does not say how much is free")
    what = f"{free / 2**30:,.1f} GiB free"
    if free < MEMORY:
        return Finding("broken", what, "end other programs, or use a smaller replay.capacity")
    return Finding("ok", what)


def free_memory(
    meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Bytes that programs can still have: the machine's, or what is left to a container."""
    found: list[int] = []
    with suppress(OSError, ValueError, IndexError):
        lines = meminfo.read_text().splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):  # "max" is no limit
        limit = int((cgroup / "memory.max").read_text())
        found.append(limit - int((cgroup / "memory.current").read_text()))
    return min(found, default=None)


CHECKS = (
    Check("python", lambda: Finding("ok", f"{platform.python_version()} in {sys.prefix}"), True),
    Check("torch", check_torch, True),
    Check("accelerate", check_accelerate, True),
    Check("gymnasium", lambda: check_environment("CartPole-v1"), True),
    Check(
        *("Box2D", lambda: check_environment("LunarLander-v3"), True, "Box2D"),
        *("LunarLander and the demo need it", "pip install 'gymnasium[box2d]'"),
    ),
    Check("disk", check_disk, True),
    Check("memory", check_memory, True),
    Check("C++ compiler", check_compiler, False),
    Check(
        *("EnvPool", check_envpool, False, "envpool"),
        *("env.backend: envpool needs it", "pip install -e '.[envpool]', if you want it"),
    ),
    Check(
        *("W&B", check_wandb, False, "wandb"),
        *("not installed", "pip install wandb, if you want its dashboards"),
    ),
)


def examine(check: Check) -> Finding:
    """What a check finds; whatever it raises is a finding, too."""
    if check.package and importlib.util.find_spec(check.package) is None:
        return Finding("missing", check.without, check.install)
    try:
        with warnings.catch_warnings():  # of packages, about themselves
            warnings.simplefilter("ignore")
            return check.run()
    except ModuleNotFoundError as error:
        name = (error.name or check.name).split(".")[0]
        return Finding("missing", f"no module {name}", f"pip install -c constraints.txt {name}")
    except Exception as error:  # a broken installation raises anything
        first = (str(error).splitlines() or [""])[0]
        return Finding("broken", f"{type(error).__name__}: {first}", "reinstall it")


@contextmanager
def two_ranks(
    module: str = "evorl.cli.checks", seconds: float = MEETING_SECONDS
) -> Iterator[Callable[[], Finding]]:
    """Launch two ranks on the CPU as users do; what it gives waits until they have met."""
    kept = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
    with tempfile.TemporaryDirectory() as folder:
        config, output = Path(folder, "launch.yaml"), Path(folder, "output")
        config.write_text(LAUNCH)
        launcher = [sys.executable, "-m", "accelerate.commands.launch"]
        options = ["--config_file", str(config), "--main_process_port", "0"]
        with output.open("wb") as file:
            process = subprocess.Popen(
                [*launcher, *options, "-m", module],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=kept | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        try:
            yield lambda: _meeting(process, output, seconds)
        finally:
            _end(process)


def _meeting(process: subprocess.Popen[bytes], output: Path, seconds: float) -> Finding:
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return Finding("broken", f"they did not meet within {seconds:g} s", ADVICE)
    said = output.read_text(errors="replace").splitlines()
    if code == 0 and said.count(MET) == 1:
        return Finding("ok", "started by accelerate launch, met over gloo")
    errors = [line.strip() for line in said if "rror: " in line]
    return Finding("broken", errors[0] if errors else f"exit code {code}", ADVICE)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The launcher hands SIGTERM on to its ranks, which are sessions of their own."""
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def meet() -> None:
    """What each of the two ranks does: exchange a message, say so on the main rank."""
    from evorl.distributed import World

    world = World.start(agents=2, timeout=30.0)
    try:
        gathered = world.gather(f"rank {world.rank}".encode())
        received = world.broadcast(b"welcome" if world.main else None)
        fine = gathered is None or gathered == [b"rank 0", b"rank 1"]
        if world.agree(not fine or received != b"welcome"):
            sys.exit("error: the ranks did not understand each other")
        if world.main:
            print(MET, flush=True)
    finally:
        world.close()


def _version(package: str) -> str:
    return importlib.metadata.version(package)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    meet()
