"""evaluate and watch: against plain Gymnasium loops, and films read back frame by frame."""

import re
from itertools import pairwise

import gymnasium
import imageio_ffmpeg
import numpy as np
import pytest
import torch

from evorl.algorithms.base import Trained
from evorl.algorithms.dqn import DQN
from evorl.config import dump_config, parse_config
from evorl.errors import EnvError
from evorl.genome import Architecture, Genome
from evorl.networks.spec import NetworkSpec
from evorl.population.population import Population
from evorl.reporting.console import Console
from evorl.runs.agent import Agent, load_agent
from evorl.runs.compare import interquartile_mean
from evorl.seeding import fresh
from evorl.shipping.export import export_agent
from evorl.shipping.play import select_agent, watch_agent, write_film
from evorl.training.score import play_alone
from tests.shipping.worlds import ACTION_START, World, make_run, population_of, saved
from tests.synthetic import HYPERPARAMETERS

torch.set_num_threads(1)

QUIET = Console(quiet=True)


def cartpole(folder):
    """Three agents of CartPole that do not all do the same."""
    genomes = [Genome(i, {"q": Architecture((16, 16), "tanh")}, HYPERPARAMETERS) for i in range(3)]
    population = Population(genomes, {"q": Trained(NetworkSpec(4, 2, dueling=True))}, DQN(), seed=5)
    return make_run(folder, population, env="CartPole-v1", name="cartpole", max_episode_steps=90)


def plain_returns(agent, env, seeds):
    """An ordinary loop over episodes, with one observation at a time."""
    found = []
    for seed in seeds:
        obs, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(agent.act(obs))
            total, over = total + reward, terminated or truncated
        found.append(total)
    return found


def frames_of(path):
    """All frames of a film [N, H, W, 3], and its frames a second."""
    reader = imageio_ffmpeg.read_frames(str(path))
    facts = next(reader)
    width, height = facts["size"]
    frames = [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader]
    return np.stack(frames), facts["fps"]


def interrupted():
    yield np.zeros((20, 20, 3), np.uint8)
    raise KeyboardInterrupt


@pytest.mark.parametrize("form", ["cartpole", "vector", "discrete", "pixels", "grey"])
def test_evaluate_is_a_plain_loop_with_the_exported_module(evorl, tmp_path, form):
    if form == "cartpole":
        run, env = cartpole(tmp_path), gymnasium.make("CartPole-v1", max_episode_steps=90)
    else:
        run = make_run(tmp_path, population_of(form), form=form)
        env = gymnasium.make("World-v0", form=form)
    selected = select_agent(run.path)
    export_agent(Agent(selected.agent), "safetensors", tmp_path / "model")
    seeds = fresh(7, 12, selected.used_seeds)
    expected = plain_returns(load_agent(tmp_path / "model"), env, seeds)
    assert len(set(expected)) > 2
    played, failures = play_alone(selected.agent, selected.spec, seeds, 10_000, QUIET)
    np.testing.assert_allclose(played.returns[0], expected, rtol=1e-6)
    assert failures == 0
    code, out, err = evorl("evaluate", run.path, "--episodes", 12, "--seed", 7)
    assert (code, err) == (0, "")
    title, score, steps = out.splitlines()
    assert "the best, as of generation 3" in title
    figures = [float(x) for x in re.findall(r"(?:mean|IQM) (-?[\d.]+)", score)]
    both = np.mean(expected), interquartile_mean(np.array(expected))
    np.testing.assert_allclose(figures, both, atol=0.051)
    assert score.count("(95 % interval ") == 2
    assert steps == f"{played.steps:,} environment steps"


def test_evaluate_says_the_same_every_time_and_changes_nothing(evorl, tmp_path):
    run = cartpole(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    said = [evorl("evaluate", run.path, "--episodes", 5, "-q") for _ in range(2)]
    assert said[0] == said[1]
    assert said[0][0] == 0
    assert len(said[0][1].splitlines()) == 1
    assert said[0] != evorl("evaluate", run.path, "--episodes", 5, "-q", "--seed", 1)
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before


def test_evaluate_one_episode_has_no_interval(evorl, tmp_path):
    code, out, err = evorl("evaluate", cartpole(tmp_path).path, "--episodes", 1)
    assert (code, err) == (0, "")
    assert "score over 1 fresh episode: mean " in out
    assert out.count("(no interval)") == 2


def test_evaluate_another_agent(evorl, tmp_path):
    run = cartpole(tmp_path)
    selected = select_agent(run.path, 2)
    seeds = fresh(0, 6, selected.used_seeds)
    played, _ = play_alone(selected.agent, selected.spec, seeds, 10_000, QUIET)
    code, out, _ = evorl("evaluate", run.path, "--agent", 2, "--episodes", 6)
    assert code == 0
    assert "agent 2, as of checkpoint generation-000004" in out
    said = float(re.search(r"mean (\S+) ", out)[1])
    assert abs(said - played.returns.mean()) < 1  # two digits of the error are shown


# films


def test_a_film_has_a_frame_for_every_step(evorl, tmp_path):
    run = cartpole(tmp_path)
    code, out, err = evorl("watch", run.path, "--episodes", 2, "--seed", 7)
    assert (code, err) == (0, "")
    _, *lines, last = out.splitlines()
    found = [re.fullmatch(r"seed (\d+): return ([\d.]+) in (\d+) steps", line) for line in lines]
    selected = select_agent(run.path)
    seeds = fresh(7, 2, selected.used_seeds)
    assert [int(line[1]) for line in found] == seeds
    played, _ = play_alone(selected.agent, selected.spec, seeds, 10_000, QUIET)
    assert [float(line[2]) for line in found] == played.returns[0].tolist()
    assert sum(int(line[3]) for line in found) == played.steps
    count = played.steps + 2  # and one at each beginning
    assert last == f"{run.path / 'best.mp4'}: {count} frames"
    frames, fps = frames_of(run.path / "best.mp4")
    assert frames.shape == (count, 400, 600, 3)
    assert fps == 50
    assert frames[0].std() > 10  # not all one colour
    assert all((a != b).any() for a, b in pairwise(frames))  # the pole moves
    assert not list(run.path.glob(".*"))


def test_a_film_shows_what_was_rendered(tmp_path):
    run = make_run(tmp_path, population_of("vector"), length=6)
    episodes = watch_agent(select_agent(run.path), [3, 4], tmp_path / "a.mp4", QUIET)
    frames, fps = frames_of(tmp_path / "a.mp4")
    assert (len(frames), fps) == (sum(one.steps + 1 for one in episodes), 20)
    assert min(frames.shape[1:3]) >= 160  # an 11 × 15 picture is enlarged
    first = episodes[0].steps + 1
    steps = [*range(first), *range(len(frames) - first)]
    scale = round(frames.shape[2] / 15)
    for frame, step in zip(frames, steps, strict=True):
        row = frame[len(frame) // 2, scale // 2 :: scale].astype(int)[:15]
        assert ((row[:, 0] > 100) == (np.arange(15) <= step)).all()


@pytest.mark.parametrize("agent", [None, 12])
def test_a_gif(evorl, tmp_path, agent):
    run = make_run(tmp_path, population_of("pixels"), form="pixels", length=6)
    who = () if agent is None else ("--agent", agent)
    code, out, err = evorl("watch", run.path, "--output", "a.GIF", "-q", *who)
    assert (code, err) == (0, "")
    episode, last = out.splitlines()
    steps = int(re.search(r"in (\d+) steps", episode)[1])
    assert last.startswith(f"a.GIF: {steps + 1} frames")
    frames, fps = frames_of(tmp_path / "a.GIF")
    assert (len(frames), fps) == (steps + 1, 20)
    assert len(np.unique(frames.reshape(-1, 3), axis=0)) > 2
    assert not (run.path / "best.mp4").exists()


def test_an_agent_s_film_is_named_after_it(evorl, tmp_path):
    run = make_run(tmp_path, population_of("vector"), length=3)
    code, out, _ = evorl("watch", run.path, "--agent", 12)
    assert code == 0
    assert (run.path / "agent-12.mp4").stat().st_size > 0
    assert str(run.path / "agent-12.mp4") in out


def test_a_long_episode_is_cut(evorl, tmp_path):
    run = make_run(tmp_path, population_of("vector"), length=10**9)
    limits = ["evaluation.max_steps=5", "evaluation.final_max_steps=5"]
    run.write_config(dump_config(parse_config(run.config().model_dump(), limits)))
    code, out, _ = evorl("watch", run.path)
    assert code == 0
    assert "in 5 steps, cut there" in out
    assert len(frames_of(run.path / "best.mp4")[0]) == 6


def test_an_older_film_is_replaced_only_by_a_whole_one(tmp_path):
    run = make_run(tmp_path, population_of("vector"), length=6)
    film = tmp_path / "a.mp4"
    watch_agent(select_agent(run.path), [3], film, QUIET)
    before = film.read_bytes()
    broken = make_run(tmp_path, population_of("vector"), name="broken", fail_at=4)
    with pytest.raises(EnvError, match="raised while it was filmed: ValueError: the simulator"):
        watch_agent(select_agent(broken.path), [3], film, QUIET)
    assert film.read_bytes() == before
    with pytest.raises(KeyboardInterrupt):
        write_film(film, interrupted(), 10)
    assert film.read_bytes() == before
    watch_agent(select_agent(run.path), [3, 4, 5], film, QUIET)
    assert film.read_bytes() != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "broken", "run"]


def test_odd_sizes_are_evened_out(tmp_path, monkeypatch):
    monkeypatch.setattr(World, "render", lambda self: np.zeros((201, 333, 3), np.uint8))
    run = make_run(tmp_path, population_of("vector"), length=3)
    watch_agent(select_agent(run.path), [1], tmp_path / "a.mp4", QUIET)
    assert frames_of(tmp_path / "a.mp4")[0].shape[1:] == (200, 332, 3)


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ("Blind-v0", "'Blind-v0' gives no pictures: its render modes are human"),
        ("Unpictured-v0", "its render() gave"),
    ],
)
def test_an_environment_without_pictures_is_one_line(evorl, tmp_path, env, says):
    run = make_run(tmp_path, population_of("vector"), env=env)
    before = sorted(tmp_path.rglob("*"))
    code, out, err = evorl("watch", run.path, "-q")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert says in err
    assert sorted(tmp_path.rglob("*")) == before


def test_no_picture_where_a_package_is_missing(tmp_path, monkeypatch):
    run = make_run(tmp_path, population_of("vector"))

    def render(self):
        raise gymnasium.error.DependencyNotInstalled("pygame is not installed")

    monkeypatch.setattr(World, "render", render)
    with pytest.raises(EnvError, match=r"while it was filmed: .*pygame is not installed"):
        watch_agent(select_agent(run.path), [1], tmp_path / "a.mp4", QUIET)


def test_a_saved_agent_plays_as_it_did_in_its_population(tmp_path):
    """What is filmed and scored is the row of the matrix."""
    population = population_of("vector")
    obs = np.random.default_rng(0).normal(size=(population.size, 30, 5)).astype(np.float32)
    actions = population.greedy(obs)
    for i in range(population.size):
        agent = Agent(saved(population, i))
        np.testing.assert_array_equal(agent.act(obs[i]), ACTION_START + actions[i])
