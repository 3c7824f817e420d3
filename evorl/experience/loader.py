"""The replay as a DataLoader that Accelerate prepared: a round's batches on the device."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from accelerate.data_loader import prepare_data_loader  # type: ignore[import-untyped]
from torch.utils.data import DataLoader, IterableDataset

from evorl.experience.sampling import Sampler, SampleRequest
from evorl.experience.transitions import Samples


class ReplayDataset(IterableDataset[Samples | None]):
    """The samples of the round requested last and None, in turn, without an end.

    Accelerate's loader reads one item ahead. What it reads ahead of a round is a None, so nothing
    is ever drawn before the latest transitions are in.
    """

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self.requests: Sequence[SampleRequest] = ()

    def __iter__(self) -> Iterator[Samples | None]:
        while True:
            yield self.sampler.sample(self.requests)
            yield None


class ReplayLoader:
    """Draws from this process's own replay; where there is an Accelerator, make that first.

    Its DataLoader stays open: to start again each round would take longer than to sample. So the
    last round's samples are kept until the next draw, and to Accelerate a loader is being read.
    """

    def __init__(self, sampler: Sampler, device: torch.device | str) -> None:
        self.dataset = ReplayDataset(sampler)
        loader: DataLoader[Samples | None] = DataLoader(
            self.dataset,
            batch_size=None,
            collate_fn=_as_it_is,
            # DataLoader draws a seed when it begins: from here, not from the global generator.
            generator=torch.Generator(),
        )
        wanted = torch.device(device)
        # `accelerator.prepare` would make a dispatcher that feeds rank 0's replay to every rank;
        # preparing for one process keeps each rank on its own.
        self.loader: DataLoader[Samples | None] = prepare_data_loader(
            loader,
            device=wanted,
            num_processes=1,
            process_index=0,
            put_on_device=wanted.type != "cpu",  # where samples are; to look through takes time
            dispatch_batches=False,
        )
        self._items: Iterator[Samples | None] | None = None

    def draw(self, requests: Sequence[SampleRequest]) -> Samples:
        """The batches of one round, for `split_groups`."""
        self.dataset.requests = requests
        items, self._items = self._items, None  # a loader that raised is at its end
        if items is None:
            items = iter(self.loader)
        else:
            next(items)  # the None after the last round's
        samples = next(items)
        assert samples is not None
        self._items = items
        return samples


def _as_it_is(samples: Any) -> Any:  # without it the loader walks through every field
    return samples
