"""Environments that raise: what is stored, what is counted, and when it is too much."""

import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from evorl.algorithms.dqn import DQN
from evorl.config import EvaluationConfig, parse_config
from evorl.envs import EnvSpec, Failures, make_episodes, make_vector_env
from evorl.errors import EnvError
from evorl.experience import ReplayBuffer, UniformSampler
from evorl.genome import Architecture, Genome
from evorl.pipeline import collect as collecting
from evorl.pipeline.champion import Champion
from evorl.pipeline.collect import Collect
from evorl.pipeline.evaluate import Evaluate, play
from evorl.pipeline.snapshot import COUNTS
from evorl.pipeline.training_context import TrainingContext, count_failures
from evorl.population.population import Population
from evorl.runs.directory import RunDirectory
from evorl.seeding import integers
from evorl.training.agents import observation_spec
from tests.pipeline.snapshots import alone, context_of

torch.set_num_threads(1)

ID, AGENTS, ENVS, ROUNDS = "Brittle-v0", 2, 3, 40
MANY = 10**6


class Brittle(gymnasium.Env):
    """A number drawn at reset decides how long the episode is, and whether it breaks at its end.

    All that happens is noted: a list for every episode, with "broken" or "over" as its last entry.
    """

    observation_space = spaces.Box(-2, 2000, (2,), np.float32)
    action_space = spaces.Discrete(3)
    episodes: list[list] = []  # noqa: RUF012

    def __init__(self, fails="steps"):
        self.fails = fails

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number, self.time, self.noted = int(self.np_random.integers(1000)), 0, []
        if self.fails == "resets" and self.number % 6 == 5:
            raise RuntimeError(f"cannot reset to {self.number}")
        self.episodes.append(self.noted)
        return self._observe(), {}

    def step(self, action):
        before = self._observe()
        self.time += 1
        over = self.time >= 2 + self.number % 7
        if self.fails == "steps" and over and self.number % 3 == 0:
            self.noted.append("broken")
            raise RuntimeError(f"cannot step\nnumber {self.number} is not round")
        reward = self.time + int(action) / 8
        terminated, truncated = over and self.number % 3 == 1, over and self.number % 3 != 1
        self.noted.append((before, int(action), reward, self._observe(), terminated))
        if over:
            self.noted.append("over")
        return self._observe(), reward, terminated, truncated, {}

    def _observe(self):
        return np.array([self.number, self.time], np.float32)


@pytest.fixture(autouse=True)
def brittle():
    gymnasium.register(ID, entry_point=Brittle)
    yield
    del gymnasium.registry[ID]


def spec_of(backend="sync", limit=MANY, **kwargs):
    return EnvSpec(ID, backend, kwargs, max_failures=limit)


def population_of(env):
    genomes = [Genome(i, {"q": Architecture((8,))}, DQN().hyperparameters) for i in range(AGENTS)]
    networks = DQN().networks(observation_spec(env.observation), env.action)
    return Population(genomes, networks, DQN(), seed=3)


def make_collect(spec, n_step=1):
    env = make_vector_env(spec, AGENTS, ENVS)
    buffer = ReplayBuffer(2000, (2,), torch.float32, n_step, num_replays=AGENTS)
    sampler = UniformSampler(buffer, [np.random.default_rng(i) for i in range(AGENTS)])
    return Collect(alone(), population_of(env), env, buffer, sampler, n_step=n_step, seed=5)


def run(collect, context):
    for _ in range(ROUNDS):
        collect(context)


def collected(spec, n_step=1, generations=2):
    collect, context = make_collect(spec, n_step), TrainingContext(AGENTS)
    Brittle.episodes.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(generations):
            run(collect, context)
            collect.end_generation()
            context.generation += 1
    collect.env.close()
    return collect.buffer, context


def held(buffer):
    """All windows, sorted."""
    states = [buffer.state_dict(replay) for replay in range(buffer.num_replays)]
    names = ("obs", "action", "rewards", "next_obs", "bootstrap")
    parts = [np.concatenate([state[name].numpy() for state in states]) for name in names]
    return sorted(np.concatenate([part.reshape(len(part), -1) for part in parts], 1).tolist())


def windows(episodes, n):
    """What the noted episodes are to leave behind, by the definition of n-step windows."""
    found = []
    for *steps, end in ([*noted, "cut"] if _runs(noted) else noted for noted in episodes):
        whole = len(steps) - n + 1 if end == "broken" else len(steps)
        for start in range(whole):
            part = steps[start : start + n]
            rewards = [step[2] for step in part] + [0.0] * (n - len(part))
            bootstrap = 0 if part[-1][4] else len(part)
            found.append([*part[0][0], part[0][1], *rewards, *part[-1][3], bootstrap])
    return sorted(found)


def _runs(noted):
    return not noted or noted[-1] not in ("broken", "over")


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("fails", ["steps", "resets"])
def test_the_replay_holds_what_happened_and_nothing_else(n_step, fails):
    buffer, context = collected(spec_of(fails=fails), n_step)
    episodes = list(Brittle.episodes)
    assert held(buffer) == windows(episodes, n_step)
    ends = [noted[-1] for noted in episodes if not _runs(noted)]
    steps = sum(step not in ("broken", "over") for noted in episodes for step in noted)
    assert context.env_steps == context.agent_steps.sum() == steps
    assert context.episodes == ends.count("over") > 10
    if fails == "steps":
        assert context.failures == ends.count("broken") > 10
        assert steps == 2 * ROUNDS * AGENTS * ENVS - context.failures
    else:
        assert context.failures > 10
        assert steps == 2 * ROUNDS * AGENTS * ENVS  # no step was lost


@pytest.mark.parametrize("fails", ["steps", "resets"])
def test_the_same_failures_give_the_same_bytes(fails):
    runs = [collected(spec_of(kind, fails=fails), 3) for kind in ("sync", "sync", "async")]
    (buffer, context), others = runs[0], runs[1:]
    for other, counted in others:
        assert counted.failures == context.failures
        for replay in range(AGENTS):
            for name, value in buffer.state_dict(replay).items():
                assert torch.equal(value, other.state_dict(replay)[name]), name


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize("limit", [0, 3])
def test_past_the_limit_the_run_stops_with_the_traceback(backend, limit):
    collect, context = make_collect(spec_of(backend, limit)), TrainingContext(AGENTS)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(EnvError) as caught:
            run(collect, context)
    collect.env.close()
    assert context.failures == limit + 1
    assert str(caught.value) == (
        f"env.max_failures: 'Brittle-v0' raised too often ({limit + 1}, {limit} allowed;"
        " fix it or allow more): RuntimeError: cannot step"
    )
    (trace,) = caught.value.__notes__
    assert trace.startswith("Traceback (most recent call last):\n")
    assert "RuntimeError: cannot step\n" in trace
    assert len(warned) == limit
    for count, warning in enumerate(warned, 1):
        assert str(warning.message) == (
            "'Brittle-v0' raised, and a new environment took its place"
            f" ({count} of {limit} allowed by env.max_failures): RuntimeError: cannot step"
        )


def test_failures_of_resets_count_with_the_first_step(monkeypatch):
    collect, context = make_collect(spec_of(fails="resets")), TrainingContext(AGENTS)
    seeds = [seed for seed in range(100) if _draws_a_bad_number(seed)]
    monkeypatch.setattr(collecting, "integers", lambda *_, count: seeds[:count])
    with pytest.warns(UserWarning, match="RuntimeError: cannot reset to"):
        collect(context)
    collect.env.close()
    assert context.failures >= AGENTS * ENVS
    assert context.env_steps == AGENTS * ENVS


def _draws_a_bad_number(seed):
    try:
        Brittle("resets").reset(seed=seed)
    except RuntimeError:
        return True
    return False


def test_failures_are_told_to_all_ranks_and_kept():
    assert "failures" in COUNTS


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_an_evaluation_takes_what_was_returned_before(backend):
    episodes = make_episodes(spec_of(backend), AGENTS * 4)
    evaluate = Evaluate(population_of(episodes), episodes, EvaluationConfig(episodes=4), seed=9)
    context = TrainingContext(AGENTS)
    with pytest.warns(UserWarning, match="took its place"):
        evaluate(context)
    episodes.close()
    env, found = Brittle(), []
    for seed in integers(9, "evaluation", 0, count=4):
        env.reset(seed=seed)
        broken = env.number % 3 == 0
        found.append((2 + env.number % 7 - broken, broken))
    lengths, broken = np.array(found).T
    whole = lengths * (lengths + 1) / 2  # and at most 2/8 for the action of each step
    assert ((context.returns >= whole) & (context.returns <= whole + lengths / 4)).all()
    assert context.failures == AGENTS * broken.sum() > 0
    assert context.evaluation_steps == AGENTS * (lengths + broken).sum()


def test_the_limit_is_one_for_training_and_evaluation():
    episodes = make_episodes(spec_of(limit=7), AGENTS * 10)
    evaluate = Evaluate(population_of(episodes), episodes, EvaluationConfig(), seed=9)
    context = TrainingContext(AGENTS, failures=7)
    with pytest.raises(EnvError, match=r"too often \(8, 7 allowed;"):
        evaluate(context)
    assert episodes.failures.take() == []
    episodes.close()


def test_confirming_the_best_counts_too(tmp_path):
    episodes = make_episodes(spec_of(), 4)
    population = population_of(episodes)
    config = parse_config({"env": {"id": ID}, "seed": 5, "budget": {"env_steps": 1}})
    champion = Champion(alone(), population, episodes, RunDirectory.create(tmp_path, "run"), config)
    context = context_of(population)
    context.snapshot.fitness = np.array([1.0, 2.0])
    with pytest.warns(UserWarning, match="took its place"):
        champion(context)
    episodes.close()
    firsts = [Brittle().reset(seed=seed)[0][0] for seed in champion.seeds[:5]]  # the first wave
    assert context.snapshot.failures == sum(number % 3 == 0 for number in firsts) > 0


@pytest.mark.parametrize(
    ("steps", "allowed"), [(0, 2), (10**6, 2), (10**6 + 1, 4), (5 * 10**6, 10)]
)
def test_the_limit_is_for_each_million_steps_that_has_begun(steps, allowed):
    failures = Failures(spec_of(limit=2))
    context = TrainingContext(AGENTS, env_steps=steps // 2, evaluation_steps=steps - steps // 2)
    for _ in range(allowed):
        failures.add(0, ["gave the reward nan"])
    with pytest.warns(UserWarning, match=f"of {allowed} allowed by env.max_failures"):
        count_failures(context, failures)
    failures.add(0, ["gave the reward nan"])
    with pytest.raises(EnvError, match=rf"too often \({allowed + 1}, {allowed} allowed;"):
        count_failures(context, failures)


def test_play_leaves_the_counting_to_others():
    episodes = make_episodes(spec_of(), AGENTS * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        play(population_of(episodes), episodes, list(range(10)), 100)
    context = TrainingContext(AGENTS)
    with pytest.warns(UserWarning, match="took its place"):
        count_failures(context, episodes.failures)
    count_failures(context, episodes.failures)  # once
    numbers = [np.random.Generator(np.random.PCG64(seed)).integers(1000) for seed in range(10)]
    assert context.failures == AGENTS * sum(number % 3 == 0 for number in numbers) > 0
    episodes.close()
