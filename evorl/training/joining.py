"""Actors that join a run while it learns, from anywhere: where they may, and what they do.

A learner with actors.listen opens a port. Who has the run's token is let in, gets the run's
configuration and the newest weights, makes its environments and plays.
"""

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import evorl
from evorl.actors import ActorEnd, BusExchange, LearnerGone
from evorl.bus import Bus, check_token, visit
from evorl.config import RunConfig, dump_config, parse_text
from evorl.distributed import World, outer_address
from evorl.errors import ConfigError, RunError
from evorl.machine import cores
from evorl.runs import TOKEN, RunDirectory
from evorl.training.actor_setup import FORMAT, actors_of, agreed, play

VARIABLE = "EVORL_TOKEN"
SCHEMA = f"evorl {evorl.__version__}, messages {FORMAT}"
GREETED = 20.0  # seconds to be answered by a learner that is there
AGAIN = 0.5  # seconds between two looks for a learner that is gone
ALL = ("", "*", "0.0.0.0", "::")  # hosts that stand for all addresses of a machine
WHAT = "the learner's configuration"

Say = Callable[[str], None]


def open_doors(
    config: RunConfig, world: World, exchange: BusExchange, directory: RunDirectory, say: Say
) -> list[str]:
    """Let actors join every learner from now on: lines that say how, on the main rank."""
    given = os.environ.get(VARIABLE)
    token = None
    if world.main:
        token = check_token(given, VARIABLE) if given else directory.token()
    token = world.trainers.broadcast_json(token)
    host, _, port = str(config.actors.listen).rpartition(":")
    where = (host.strip("[]"), int(port) and int(port) + world.trainers.place)
    greet = partial(_greeting, config, world, exchange)
    address = exchange.open_door(where, token, SCHEMA, greet, say)
    if where[0] in ALL:
        address = f"tcp://{outer_address()}:{address.rpartition(':')[2]}"
    how = "" if given else f" --token-file {directory.path / TOKEN}"
    all_of_them = world.trainers.gather(address.encode()) or []
    return [f"evorl actor --connect {own.decode()}{how}" for own in all_of_them]


def _greeting(
    config: RunConfig, world: World, exchange: BusExchange, slot: int
) -> Mapping[str, Any]:
    """What an actor is told that has joined."""
    each = actors_of(config, world)
    own = each * world.data  # actors of the run that play for the same agents
    further = (slot - each) * world.data + world.data_rank
    return {
        "number": own + further,
        "fellows": exchange.alive * world.data,
        "share": spread(min(own, 2) + further),
        "config": dump_config(config),
        "agreed": agreed(config),
    }


def spread(number: int) -> float:
    """Of 0, 1, 1/2, 1/4, 3/4, 1/8, 5/8, …: however many there are, they are spread evenly."""
    if number < 2:
        return float(number)
    digits = reversed(f"{number - 1:b}")
    return sum(int(digit) * 0.5**place for place, digit in enumerate(digits, 1))


def read_token(file: Path | None) -> str:
    """The token of the run: in a file, or in the environment."""
    if file is not None:
        try:
            text = file.read_text("utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(f"--token-file: {file} cannot be read ({error})") from None
        return check_token(text.strip(), str(file))
    if not (text := os.environ.get(VARIABLE, "")):
        raise ConfigError(
            f"the run's token is missing: set {VARIABLE}, or name its file, {TOKEN} in the run's"
            " folder, with --token-file"
        )
    return check_token(text, VARIABLE)


def join(address: str, token: str, wait: float, say: Say) -> int:
    """Play for the run that learns there until it is over; how many messages that were.

    A learner that is not there, or no longer, has so many seconds to come (back).
    """
    bus, sent = visit(address, token, SCHEMA, wait), 0
    while True:
        end = None
        try:
            with bus:
                end = ActorEnd(bus, max(bus.timeout, GREETED))
                _play(end, say)
                return sent + end.sent
        except LearnerGone as error:
            sent += end.sent if end else 0
            say(f"{error}: looking for it for {wait:g} s")
            bus = _find_again(address, token, wait, error)


def _play(end: ActorEnd, say: Say) -> None:
    if not end.greeting:  # it is over
        return
    told = dict(end.greeting)
    config = parse_text(str(told.pop("config")), WHAT)
    if agreed(config) != told.pop("agreed"):
        raise RunError(f"{WHAT} is another one when it is read here; look for older files of evorl")
    agents = f"{config.population.size} agents in {config.env.id}"
    say(f"actor {end.slot} of the run {config.name}: {agents}")
    play(config, end, told, processes=cores())  # others may play here, too


def _find_again(address: str, token: str, wait: float, lost: LearnerGone) -> Bus:
    deadline = time.monotonic() + wait
    while True:
        try:
            return visit(address, token, SCHEMA, max(deadline - time.monotonic(), AGAIN))
        except RunError as error:
            if time.monotonic() + AGAIN > deadline:
                line = f"{lost}; it has not come back within {wait:g} s ({error})"
                raise RunError(line) from error
            time.sleep(AGAIN)
