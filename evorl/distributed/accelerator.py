"""The process group and the device, through Accelerate."""

from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.utils import InitProcessGroupKwargs, parse_flag_from_env  # type: ignore[import-untyped]

from evorl.distributed.launcher import has_place, launcher_store, local_ranks, rank, restarts
from evorl.errors import ConfigError, rank_errors

CLOSED = "a World was closed in this process: its ranks cannot meet again"
_joined: list[bool] = []  # whether this process was in a group that was made here
CHECK = "check the address and port of the main process, and that all machines were started"


def make_accelerator(ranks: int, timeout: float) -> tuple[Any, bool]:
    """The Accelerator of all launched ranks, and whether it made the process group.

    Where it raises, that group is closed.
    """
    had_group = dist.is_initialized()
    if ranks > 1 and _joined and not had_group:
        raise RuntimeError(CLOSED)
    try:
        accelerator = _connect(ranks, timedelta(seconds=timeout))
        if accelerator.num_processes != ranks:
            raise ConfigError(
                f"WORLD_SIZE: {ranks} ranks were launched, but Accelerate counts"
                f" {accelerator.num_processes}; make no Accelerator before the World, and start"
                " with accelerate launch and a file of configs/accelerate"
            )
        if ranks > 1 and not dist.is_initialized():
            raise RuntimeError(CLOSED)
    except BaseException:
        if dist.is_initialized() and not had_group:
            dist.destroy_process_group()
        raise
    made = dist.is_initialized() and not had_group
    _joined.extend([True] * made)
    return accelerator, made


def _connect(ranks: int, timeout: timedelta) -> Any:
    cpu = _on_cpu(ranks)
    connecting = rank_errors(f"start: {ranks} ranks did not find each other", CHECK)
    try:
        with connecting if ranks > 1 else nullcontext():
            if ranks > 1 and (restarts() or has_place()) and not dist.is_initialized():
                # The launcher's own store lives on after a restart, with the addresses of ranks
                # that are dead: torch would take them.
                store, backend = launcher_store(timeout), "gloo" if cpu else "nccl"
                dist.init_process_group(
                    backend, timeout=timeout, world_size=ranks, rank=rank(), store=store
                )
            return Accelerator(cpu=cpu, kwargs_handlers=[InitProcessGroupKwargs(timeout=timeout)])
    except ValueError as error:  # such as mixed precision that this device does not have
        raise ConfigError(f"accelerate: {' '.join(str(error).split())}") from error


def _on_cpu(ranks: int) -> bool:
    """Whether to train on the CPU.

    Without a GPU Accelerate must be told so: else it takes each of several ranks for the only one.
    """
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None or parse_flag_from_env("ACCELERATE_USE_CPU"):
        return True
    if ranks == 1:
        return False
    if device.type == "mps":  # one for all, and no collectives
        return True
    if torch.accelerator.device_count() < local_ranks():
        raise ConfigError(
            f"{device.type}: every rank needs a device of its own, got"
            f" {torch.accelerator.device_count()} for {local_ranks()} ranks on this machine; start"
            " fewer, or set ACCELERATE_USE_CPU=true"
        )
    return False
