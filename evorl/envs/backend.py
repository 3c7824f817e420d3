"""Which backend runs an environment, and the two ways to get one."""

import statistics
import time
from collections.abc import Callable

from evorl.envs.entrance import Entrance
from evorl.envs.make import EnvSpec, close
from evorl.envs.native import NativeVectorEnv, PoolVectorEnv, native_refusal
from evorl.envs.rebuilding import make_slot, random_action, step_slots
from evorl.envs.spaces import SpaceAdapter
from evorl.envs.vector import Episodes, SlotVectorEnv, SyncVectorEnv, VectorEnv, inspect
from evorl.envs.watching import Watch
from evorl.envs.workers import AsyncVectorEnv
from evorl.machine import cores

SLOTS: dict[str, Callable[[EnvSpec, int], SlotVectorEnv]] = {
    "sync": SyncVectorEnv,
    "async": AsyncVectorEnv,
    "envpool": PoolVectorEnv,
}
NATIVE_FROM = 8  # environments per agent: a native step of CartPole costs as much as 6–8 plain ones
ASYNC_ABOVE_MS = 1.5  # AsyncVectorEnv's messages cost 0.3–0.4 ms a step: worth it well above that
MOST_SLOTS = 512  # plain environments that play at once
TIMED_STEPS = 40
TIMED_SECONDS = 0.5


def make_vector_env(spec: EnvSpec, num_agents: int, num_envs: int) -> VectorEnv:
    """The environments of all agents in one: slot agent * num_envs + i is that agent's i-th."""
    backend, _ = choose_backend(spec, num_agents, num_envs)
    if backend == "native":
        return NativeVectorEnv(spec, num_agents, num_envs)
    return SLOTS[backend](spec, num_agents * num_envs)


def make_episodes(spec: EnvSpec, count: int) -> Episodes:
    """Slots for seeded episodes; native stands for sync here, which steps in part."""
    backend, _ = choose_backend(spec, 1, count)
    return Episodes(SLOTS["sync" if backend == "native" else backend](spec, count))


def spaces_of(spec: EnvSpec) -> SpaceAdapter:
    """What the environment's observations and actions are; ConfigError if it cannot be made."""
    return PoolVectorEnv(spec, 1).spaces if spec.backend == "envpool" else inspect(spec)[0]


def slots_for(spec: EnvSpec, episodes: int) -> int:
    """How many slots to play episodes in: all at once, or the next where one is over."""
    return min(episodes, cores() if spec.backend == "async" else MOST_SLOTS)  # async: processes


def choose_backend(spec: EnvSpec, num_agents: int, num_envs: int) -> tuple[str, str]:
    """The backend that spec.backend stands for, and one line on why.

    Native or not never rests on a measurement, because the randomness differs; sync or async does,
    and both give the same bytes.
    """
    if spec.backend != "auto":
        return spec.backend, "set by env.backend"
    refusal = native_refusal(spec)
    if refusal is None and num_envs >= NATIVE_FROM:
        return "native", f"{spec.id!r} has a native vector version"
    why = refusal or f"its native vector version pays from {NATIVE_FROM} environments per agent"
    cost, several = _step_ms(spec), min(num_agents * num_envs, cores()) > 1
    if several and cost > ASYNC_ABOVE_MS:
        return "async", f"a step takes {cost:.2g} ms, so that worker processes pay; {why}"
    return "sync", f"a step takes {cost:.2g} ms, and worker processes would not pay; {why}"


def _step_ms(spec: EnvSpec) -> float:
    """The median time of a random step of one environment, in ms."""
    entrance = Entrance(inspect(spec)[0])
    with Watch(spec.id, spec.timeout):
        env = make_slot(spec, entrance=entrance)  # failing at times is no reason not to begin
        try:
            env.action_space.seed(0)
            env.reset(seed=0)
            times: list[float] = []
            while len(times) < TIMED_STEPS and sum(times) < TIMED_SECONDS:
                action, start = random_action(env), time.perf_counter()
                step, _ = step_slots([env], [action], entrance)
                times.append(time.perf_counter() - start)
                if step.terminated[0] or step.truncated[0]:
                    env.reset()
            return 1000 * statistics.median(times)
        finally:
            close(env)
