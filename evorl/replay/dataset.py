"""The replay as a DataLoader that Accelerate prepared: a round's batches on the device.

dataset.request(plans)
for samples in loader:  # exactly one
    ...
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from accelerate.data_loader import prepare_data_loader  # type: ignore[import-untyped]
from torch.utils.data import DataLoader, IterableDataset

from evorl.replay.plans import GroupPlan
from evorl.replay.sampling import Sampler
from evorl.replay.transitions import Samples


class ReplayDataset(IterableDataset[Samples]):
    """One item an iteration: the samples of the round requested last.

    Accelerate's loader reads one item ahead to see the end coming. With one item an iteration that
    read finds the end, so nothing is ever drawn before the latest transitions are in.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._plans: Sequence[GroupPlan] | None = None

    def request(self, plans: Sequence[GroupPlan]) -> None:
        """States what the next iteration is to give."""
        self._plans = plans

    def __iter__(self) -> Iterator[Samples]:
        plans, self._plans = self._plans, None
        if plans is None:
            raise RuntimeError("nothing requested: call request(plans) before each iteration")
        yield self._sampler.sample(plans)


def replay_loader(dataset: ReplayDataset, device: torch.device | str) -> DataLoader[Samples]:
    """The loader of this process's own replay; where there is an Accelerator, make that first.

    `accelerator.prepare` would make a dispatcher that feeds rank 0's replay to every rank;
    preparing for one process keeps each rank on its own.
    """
    loader: DataLoader[Samples] = DataLoader(
        dataset,
        batch_size=None,
        collate_fn=_as_it_is,
        # DataLoader draws a seed at every iteration: from here, not from the global generator.
        generator=torch.Generator(),
    )
    prepared: DataLoader[Samples] = prepare_data_loader(
        loader,
        device=torch.device(device),
        num_processes=1,
        process_index=0,
        put_on_device=True,
        dispatch_batches=False,
    )
    return prepared


def _as_it_is(samples: Any) -> Any:  # without it the loader walks through every field
    return samples
