"""The replay as a DataLoader that Accelerate prepared: a round's batches on the device."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from accelerate.data_loader import prepare_data_loader  # type: ignore[import-untyped]
from torch.utils.data import DataLoader, IterableDataset

from evorl.experience.sampling import Sampler, SampleRequest
from evorl.experience.transitions import Samples


class Round:
    """One round's samples, which are drawn when the round is asked for."""

    def __init__(self) -> None:
        self.samples: Samples | None = None
        self._device: torch.device | None = None  # None: they stay where they are

    def to(self, device: torch.device, non_blocking: bool = False) -> "Round":
        """Where they are wanted; Accelerate says so before there are any."""
        self._device = device
        return self

    def fill(self, samples: Samples) -> None:
        """They are drawn."""
        if self._device is not None:
            samples = type(samples)(*(field.to(self._device) for field in samples))
        self.samples = samples


class ReplayDataset(IterableDataset[Round]):
    """Round after round, without an end.

    Accelerate's loader reads one item ahead. What it reads ahead is an empty round, which is filled
    when the loader comes to it: so nothing is ever drawn before the latest transitions are in.
    """

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self.requests: Sequence[SampleRequest] = ()

    def __iter__(self) -> Iterator[Round]:
        yield (wanted := Round())
        while True:
            ahead = Round()
            wanted.fill(self.sampler.sample(self.requests))
            yield ahead
            wanted = ahead


class ReplayLoader:
    """Draws from this process's own replay; where there is an Accelerator, make that first.

    Its DataLoader stays open: to start again each round would take longer than to sample. So to
    Accelerate a loader is being read.
    """

    def __init__(self, sampler: Sampler, device: torch.device | str) -> None:
        self.dataset = ReplayDataset(sampler)
        loader: DataLoader[Round] = DataLoader(
            self.dataset,
            batch_size=None,
            collate_fn=_as_it_is,
            # DataLoader draws a seed when it begins: from here, not from the global generator.
            generator=torch.Generator(),
        )
        wanted = torch.device(device)
        # `accelerator.prepare` would make a dispatcher that feeds rank 0's replay to every rank;
        # preparing for one process keeps each rank on its own.
        self.loader: DataLoader[Round] = prepare_data_loader(
            loader,
            device=wanted,
            num_processes=1,
            process_index=0,
            put_on_device=wanted.type != "cpu",  # where samples are; to look through takes time
            dispatch_batches=False,
        )
        self._rounds: Iterator[Round] | None = None

    def draw(self, requests: Sequence[SampleRequest]) -> Samples:
        """The batches of one round, for `split_groups`."""
        self.dataset.requests = requests
        rounds, self._rounds = self._rounds or iter(self.loader), None  # at its end if it raises
        round_ = next(rounds)
        self._rounds = rounds
        samples, round_.samples = round_.samples, None
        assert samples is not None
        return samples


def _as_it_is(item: Any) -> Any:  # without it the loader looks through every item
    return item
