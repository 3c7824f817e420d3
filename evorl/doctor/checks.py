"""The checks that one process can make, each a function that returns a Finding."""

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from evorl.doctor.finding import Finding
from evorl.doctor.wandb_login import check_wandb

PYTHON = (3, 11)
DISK, MEMORY = 2**30, 2**30  # bytes below which a run is likely to fail
COMPILER_SECONDS = 15
# What torch.compile includes and links; without Python's headers it fails, too.
PROGRAM = "#include <Python.h>\n#include <omp.h>\nint threads() { return omp_get_max_threads(); }\n"


class Check(NamedTuple):
    """One question to the machine."""

    name: str
    run: Callable[[], Finding]
    needed: bool  # training fails without


def check_python() -> Finding:
    """The interpreter."""
    version = platform.python_version()
    if sys.version_info < PYTHON:
        need = ".".join(map(str, PYTHON))
        return Finding("broken", f"{version} in {sys.prefix}", f"install Python {need} or newer")
    return Finding("ok", f"{version} in {sys.prefix}")


def check_torch() -> Finding:
    """PyTorch, by a gradient on the device that training would take."""
    torch = importlib.import_module("torch")
    device = torch.accelerator.current_accelerator(check_available=True)
    value = torch.ones(2, device=device or "cpu", requires_grad=True)
    (value * value).sum().backward()
    if value.grad.tolist() != [2.0, 2.0]:
        return Finding("broken", f"{torch.__version__} computes wrongly", "install it anew")
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
    compiler = shutil.which(os.environ.get("CXX", "clang++" if _mac() else "g++"))
    if compiler is None:
        return Finding(
            "missing",
            "no C++ compiler: long runs are not compiled, and slower",
            "install g++ (Debian: apt install g++), or set CXX",
        )
    include = sysconfig.get_paths()["include"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "program.cpp"
        source.write_text(PROGRAM)
        flags = ["-shared", "-fPIC", *([] if _mac() else ["-fopenmp"])]
        command = [compiler, *flags, f"-I{include}", str(source), "-o", f"{folder}/program.so"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=COMPILER_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return Finding("broken", f"{compiler} did not end", "set compile: false in your runs")
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if "error" in line), "it failed")
        return Finding(
            "broken",
            f"{compiler}: {said.strip()}",
            "install Python's headers (Debian: apt install python3-dev) and OpenMP",
        )
    return Finding("ok", f"{compiler}, for torch.compile")


def check_gymnasium() -> Finding:
    """Gymnasium, by a step of CartPole."""
    _try_environment("CartPole-v1")
    return Finding("ok", _version("gymnasium"))


def check_box2d() -> Finding:
    """Box2D, by a step of LunarLander."""
    if importlib.util.find_spec("Box2D") is None:
        return Finding(
            "missing", "LunarLander and the demo need it", "pip install 'gymnasium[box2d]'"
        )
    _try_environment("LunarLander-v3")
    return Finding("ok", "LunarLander-v3 runs")


def check_envpool() -> Finding:
    """EnvPool, by a step of CartPole."""
    if importlib.util.find_spec("envpool") is None:
        return Finding(
            "missing",
            "env.backend: envpool needs it",
            "pip install -e '.[envpool]', if you want it",
        )
    envpool = importlib.import_module("envpool")
    env = envpool.make_gymnasium("CartPole-v1", num_envs=1)
    env.reset()
    env.close()
    return Finding("ok", _version("envpool"))


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
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(1024 * int(line.split()[1]))
    except (OSError, ValueError, IndexError):
        pass
    try:
        limit = int((cgroup / "memory.max").read_text())  # ValueError for "max": no limit
        found.append(limit - int((cgroup / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return min(found, default=None)


CHECKS = (
    Check("python", check_python, needed=True),
    Check("torch", check_torch, needed=True),
    Check("accelerate", check_accelerate, needed=True),
    Check("gymnasium", check_gymnasium, needed=True),
    Check("Box2D", check_box2d, needed=True),
    Check("disk", check_disk, needed=True),
    Check("memory", check_memory, needed=True),
    Check("C++ compiler", check_compiler, needed=False),
    Check("EnvPool", check_envpool, needed=False),
    Check("W&B", check_wandb, needed=False),
)


def examine(check: Check) -> Finding:
    """What a check finds; whatever it raises is a finding, too."""
    try:
        with warnings.catch_warnings():  # of packages, about themselves
            warnings.simplefilter("ignore")
            return check.run()
    except ModuleNotFoundError as error:
        name = (error.name or check.name).split(".")[0]
        return Finding("missing", f"no module {name}", f"pip install -c constraints.txt {name}")
    except Exception as error:  # a broken installation raises anything
        first = (str(error).splitlines() or [""])[0]
        return Finding("broken", f"{type(error).__name__}: {first}", "install it anew")


def _try_environment(env_id: str) -> None:
    gymnasium = importlib.import_module("gymnasium")
    env = gymnasium.make(env_id)
    try:
        env.reset(seed=0)
        env.step(env.action_space.sample())
    finally:
        env.close()


def _version(package: str) -> str:
    return importlib.metadata.version(package)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _mac() -> bool:
    return sys.platform == "darwin"
