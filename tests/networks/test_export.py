"""Plain networks against their row in the matrix, and agents on disk, whole and damaged."""

import itertools
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from evorl.algorithms.base import Trained
from evorl.algorithms.dqn import DQN
from evorl.errors import RunError
from evorl.genome import ACTIVATIONS, Architecture, Genome
from evorl.networks.layout import network_part, row_shapes
from evorl.networks.module import to_module
from evorl.networks.spec import NetworkSpec, ParameterSpec
from evorl.population.population import Population
from evorl.runs.agent import FACTS, WEIGHTS, Interface, SavedAgent, read_agent, save_agent
from tests.synthetic import HYPERPARAMETERS, saved_agent

torch.set_num_threads(1)

SPECS = {
    "vector": NetworkSpec(7, 4),
    "one-hot": NetworkSpec(9, 4, one_hot=True),
    "pixels": NetworkSpec(0, 4, image=(3, 8, 7), scale=1 / 255),
    "float image": NetworkSpec(0, 4, image=(2, 6, 6)),
}
# two agents of each kind, so that one of them is padded in width, depth and channels
SHAPES = {
    False: [((13,), (), (3, 5)), ((9, 16, 6), (), (4, 8))],
    True: [((12, 12), (False, True), (3, 5)), ((16, 11, 11), (False, False, True), (4, 8))],
}


def genomes(kind, activation):
    """Every mix of LayerNorm, dueling and gates, twice each."""
    found = []
    image = SPECS[kind].image is not None
    for layer_norm, dueling, gates in itertools.product([False, True], repeat=3):
        for hidden, gated, channels in SHAPES[gates]:
            shape = (channels, (3, 2), (2, 1)) if image else ()
            architecture = Architecture(hidden, activation, layer_norm, dueling, gated, *shape)
            found.append(Genome(len(found), {"q": architecture}, HYPERPARAMETERS))
    return found


def population_of(kind, activation="relu", dtype=torch.float32):
    """Agents whose scales, shifts and gates are random too."""
    population = Population(
        genomes(kind, activation), {"q": Trained(SPECS[kind])}, DQN(), seed=1, dtype=dtype
    )
    generator = torch.Generator().manual_seed(2)
    states = [population.state(i) for i in range(population.size)]
    for state in states:
        for name, value in state.online.items():
            if name.split(".")[2] in ("scale", "shift", "gate"):
                noise = torch.rand(value.shape, generator=generator, dtype=torch.float64)
                value += (0.3 + 0.5 * noise).to(value)
    population.rebuild(population.genomes, states)
    return population


def observations(kind, count=64, seed=0):
    spec, random = SPECS[kind], np.random.default_rng(seed)
    if spec.one_hot:
        return random.integers(0, spec.inputs, count)
    if kind == "pixels":
        return random.integers(0, 256, (count, *spec.image), dtype=np.uint8)
    shape = spec.image or (spec.inputs,)
    return random.normal(size=(count, *shape)).astype(np.float32)


def module_of(population, agent):
    own = network_part(population.state(agent).online, "q")
    return to_module(population.specs["q"], population.genomes[agent].architectures["q"], own)


def matrix_values(population, obs):
    """Q values [P, B, A] of every agent, from the matrices."""
    found = [None] * population.size
    for numbers, group in zip(population.members, population.groups, strict=True):
        with torch.no_grad():
            values = group.online["q"](torch.from_numpy(np.stack([obs] * group.size)))
        for number, own in zip(numbers, values, strict=True):
            found[number] = own
    return found


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_module_gives_the_matrix_values_and_actions(activation, kind):
    population, obs = population_of(kind, activation), observations(kind)
    actions = population.greedy(np.stack([obs] * population.size))
    spread = []
    for i, expected in enumerate(matrix_values(population, obs)):
        with torch.no_grad():
            values = module_of(population, i)(torch.from_numpy(obs))
        assert values.shape == (len(obs), population.specs["q"].outputs)
        # LayerNorm divides by a small deviation, and rounding with it; float64 below is exact
        rounding = 2e-6 if population.genomes[i].architectures["q"].layer_norm else 1e-6
        torch.testing.assert_close(values, expected, rtol=0, atol=rounding)
        np.testing.assert_array_equal(values.argmax(1).numpy(), actions[i])
        spread.append(values.std(0).mean().item())
    assert min(spread) > 1e-4  # outputs depend on the observation
    assert len({tuple(row) for row in actions}) > 4


@pytest.mark.parametrize("kind", SPECS)
def test_module_in_float64_gives_the_matrix_values(kind):
    population, obs = population_of(kind, "gelu", torch.float64), observations(kind)
    for i, expected in enumerate(matrix_values(population, obs)):
        values = module_of(population, i)(torch.from_numpy(obs))
        assert values.dtype == torch.float64
        torch.testing.assert_close(values, expected, rtol=0, atol=1e-13)


def test_module_has_the_agent_s_own_weights_and_no_more():
    population = population_of("pixels")
    for i in range(population.size):
        module, own = module_of(population, i), population.state(i).online
        assert sum(p.numel() for p in module.parameters()) == sum(p.numel() for p in own.values())
        assert all(p.requires_grad for p in module.parameters())


def test_module_is_a_copy():
    population, obs = population_of("vector"), torch.from_numpy(observations("vector"))
    parameters = network_part(population.state(0).online, "q")
    architecture = population.genomes[0].architectures["q"]
    module = to_module(population.specs["q"], architecture, parameters)
    before = module(obs)
    for group in population.groups:
        group.theta.zero_()
    for value in parameters.values():
        value.zero_()
    assert torch.equal(module(obs), before)


def test_module_can_be_trained():
    population, obs = population_of("pixels", "silu"), torch.from_numpy(observations("pixels"))
    for i in range(population.size):
        module = module_of(population, i)
        module(obs).square().sum().backward()
        assert all(p.grad is not None and p.grad.any() for p in module.parameters())


@pytest.mark.parametrize("kind", ["vector", "pixels"])
def test_module_takes_extra_inputs_before_the_rest(kind):
    """As in the matrix: the first rows of the first layer are the extra inputs'."""
    spec = SPECS[kind].giving(2, extra=3)
    population = Population(genomes(kind, "tanh"), {"q": Trained(spec)}, DQN(), seed=1)
    obs = torch.from_numpy(observations(kind))
    extra = torch.linspace(-1, 1, 3 * len(obs)).view(len(obs), 3)
    for numbers, group in zip(population.members, population.groups, strict=True):
        many = [torch.stack([x] * group.size) for x in (obs, extra)]
        with torch.no_grad():
            expected = group.online["q"](*many)
            for number, own in zip(numbers, expected, strict=True):
                found = module_of(population, number)(obs, extra)
                torch.testing.assert_close(found, own, rtol=0, atol=2e-6)
    with torch.no_grad():
        assert (module_of(population, 0)(obs, -extra) != found).any()


@pytest.mark.parametrize("kind", SPECS)
def test_module_can_be_exported(kind):
    """torch.export, with a batch of any size."""
    population = population_of(kind)
    obs, others = (torch.from_numpy(observations(kind, n, seed=n)) for n in (5, 3))
    module = module_of(population, population.size - 1)  # LayerNorm, dueling and a gate
    batch = {0: torch.export.Dim("batch")}
    exported = torch.export.export(module, (obs,), dynamic_shapes=(batch,)).module()
    torch.testing.assert_close(exported(others), module(others), rtol=0, atol=1e-6)


# on disk


def saved(tmp_path, kind="vector", agent=-1, **facts):
    population = population_of(kind, "tanh")
    agent %= population.size
    parts = population.genomes[agent], population.specs["q"], population.state(agent).online
    agent = saved_agent(*parts, **facts)
    save_agent(tmp_path / "best", agent)
    return tmp_path / "best", agent


def same(one, other):
    weights, others = one.parameters, other.parameters
    assert one._replace(parameters={}) == other._replace(parameters={})
    assert weights.keys() == others.keys()
    return all(torch.equal(value, others[name]) for name, value in weights.items())


@pytest.mark.parametrize("kind", SPECS)
def test_round_trip(tmp_path, kind):
    for agent in range(16):
        facts = {"env": "Some-v0", "fitness": 1.5, "env_steps": 10**9}
        folder, before = saved(tmp_path / str(agent), kind, agent, **facts)
        for path in (folder, str(folder)):
            after = read_agent(path)
            assert after.facts == facts
            assert same(after, before)


def several(**changes):
    """An agent of two networks and a bare parameter."""
    actor = NetworkSpec(5, 2)
    specs = {"actor": actor, "critic": actor.giving(1, extra=2), "log_alpha": ParameterSpec(1)}
    own = {"actor": Architecture((6,), "tanh"), "critic": Architecture((8, 8), "relu", True)}
    random = torch.Generator().manual_seed(0)
    weights = {n: torch.randn(s, generator=random) for n, s in row_shapes(specs, own).items()}
    algorithm = {"name": "nowhere:Nothing", "temperature": 0.5}
    genome = Genome(3, own, {"lr": 1e-3})
    agent = SavedAgent(genome, specs, weights, algorithm, Interface((5,)), {})
    return agent._replace(**changes)


def test_round_trip_of_several_networks_imports_nothing(tmp_path):
    """Not even the algorithm's module, which does not exist."""
    save_agent(tmp_path, several())
    assert "critic.hidden1.scale" in load_file(tmp_path / WEIGHTS)
    assert same(read_agent(tmp_path), several())


def test_files_have_nothing_to_execute(tmp_path):
    folder, agent = saved(tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == [FACTS, WEIGHTS]
    weights = load_file(folder / WEIGHTS)
    assert {name: value.shape for name, value in weights.items()} == {
        name: value.shape for name, value in agent.parameters.items()
    }


def cut(share):
    def damage(path):
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])

    return damage


def write(content):
    return lambda path: path.write_bytes(content)


def edit(change):
    """Change agent.json as a value."""

    def damage(path):
        facts = json.loads(path.read_text())
        changed = change(facts)
        path.write_text(json.dumps(facts if changed is None else changed))

    return damage


def put(value, *keys):
    """Set a value deep in agent.json."""

    def change(facts):
        for key in keys[:-1]:
            facts = facts[key]
        assert keys[-1] in facts
        facts[keys[-1]] = value

    return edit(change)


def drop(*keys):
    def change(facts):
        for key in keys[:-1]:
            facts = facts[key]
        del facts[keys[-1]]

    return edit(change)


def weights(change):
    """Change weights.safetensors as a dict of tensors."""

    def damage(path):
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)

    return damage


def another_shape(tensors):
    tensors["q.head.bias"] = torch.zeros(len(tensors["q.head.bias"]) + 1)


def transposed(tensors):
    tensors["q.head.weight"] = tensors["q.head.weight"].T.contiguous()


DAMAGES = {
    "no json": (FACTS, lambda path: path.unlink()),
    "empty json": (FACTS, cut(0)),
    "half json": (FACTS, cut(0.5)),
    "not utf-8": (FACTS, write(b"\xff\xfe\x00{}")),
    "a list": (FACTS, edit(lambda facts: [facts])),
    "null": (FACTS, write(b"null")),
    "a number": (FACTS, write(b"3")),
    "a string": (FACTS, write(b'"format"')),
    "a folder": (FACTS, lambda path: (path.unlink(), path.mkdir())),
    "no format": (FACTS, drop("format")),
    "format 0": (FACTS, put(0, "format")),
    "format 1": (FACTS, put(1, "format")),
    "no genome": (FACTS, drop("genome")),
    "genome null": (FACTS, put(None, "genome")),
    "no architecture": (FACTS, drop("genome", "architectures", "q")),
    "no id": (FACTS, drop("genome", "id")),
    "hyperparameters null": (FACTS, put(None, "genome", "hyperparameters")),
    "no hidden": (FACTS, put([], "genome", "architectures", "q", "hidden")),
    "hidden null": (FACTS, put(None, "genome", "architectures", "q", "hidden")),
    "hidden a number": (FACTS, put(16, "genome", "architectures", "q", "hidden")),
    "hidden of text": (FACTS, put(["16", "11", "11"], "genome", "architectures", "q", "hidden")),
    "other widths": (FACTS, put([16, 12, 12], "genome", "architectures", "q", "hidden")),
    "other depth": (FACTS, put([16, 11], "genome", "architectures", "q", "hidden")),
    "activation unknown": (FACTS, put("sine", "genome", "architectures", "q", "activation")),
    "activation a list": (FACTS, put(["relu"], "genome", "architectures", "q", "activation")),
    "unknown key": (FACTS, put({"wings": 2}, "genome", "architectures", "q")),
    "no LayerNorm": (FACTS, put(False, "genome", "architectures", "q", "layer_norm")),
    "not dueling": (FACTS, put(False, "genome", "architectures", "q", "dueling")),
    "gates elsewhere": (FACTS, put([False] * 3, "genome", "architectures", "q", "gated")),
    "no networks": (FACTS, put({}, "genome", "architectures")),
    "another network": (FACTS, edit(lambda f: f["genome"]["architectures"].update(r={}))),
    "no specs": (FACTS, drop("specs")),
    "specs null": (FACTS, put(None, "specs")),
    "specs empty": (FACTS, put({}, "specs")),
    "spec null": (FACTS, put(None, "specs", "q")),
    "a bare parameter": (FACTS, put({"size": 1}, "specs", "q")),
    "one more": (FACTS, edit(lambda f: f["specs"].update(alpha={"size": 2}))),
    "no outputs": (FACTS, drop("specs", "q", "outputs")),
    "more outputs": (FACTS, put(5, "specs", "q", "outputs")),
    "outputs text": (FACTS, put("4", "specs", "q", "outputs")),
    "extra inputs": (FACTS, put(2, "specs", "q", "extra")),
    "no algorithm": (FACTS, drop("algorithm")),
    "algorithm a list": (FACTS, put(["dqn"], "algorithm")),
    "no interface": (FACTS, drop("interface")),
    "interface null": (FACTS, put(None, "interface")),
    "no shape": (FACTS, drop("interface", "shape")),
    "shape of text": (FACTS, put(["7"], "interface", "shape")),
    "long name": (FACTS, put({"x" * 10**5: {}}, "genome", "architectures")),
    "start text": (FACTS, put("1", "interface", "action_start")),
    "fewer inputs": (FACTS, put(6, "specs", "q", "inputs")),
    "an image": (FACTS, put([3, 8, 7], "specs", "q", "image")),
    "half an image": (FACTS, put([3, 8], "specs", "q", "image")),
    "image a number": (FACTS, put(3, "specs", "q", "image")),
    "no weights": (WEIGHTS, lambda path: path.unlink()),
    "empty weights": (WEIGHTS, cut(0)),
    "a header's start": (WEIGHTS, cut(0.02)),
    "half the weights": (WEIGHTS, cut(0.5)),
    "a byte short": (WEIGHTS, cut(0.9999)),
    "noise": (WEIGHTS, write(bytes(range(256)) * 8)),
    "a pickle": (WEIGHTS, lambda path: torch.save({}, path)),
    "one missing": (WEIGHTS, weights(lambda tensors: tensors.pop("q.hidden0.bias"))),
    "all missing": (WEIGHTS, weights(dict.clear)),
    "one too many": (WEIGHTS, weights(lambda t: t.update(extra=torch.zeros(1)))),
    "wrong shape": (WEIGHTS, weights(another_shape)),
    "transposed": (WEIGHTS, weights(transposed)),
}

# Images only; the numbers of the JSON file that are used, not compared with the weights.
MORE_DAMAGES = {
    "stride 0": ("pixels", put([0, 1], "genome", "architectures", "q", "strides")),
    "stride text": ("pixels", put(["2", 1], "genome", "architectures", "q", "strides")),
    "kernel too large": ("pixels", put([30, 2], "genome", "architectures", "q", "kernels")),
    "stride negative": ("pixels", put([2, -1], "genome", "architectures", "q", "strides")),
    "one stride": ("pixels", put([2], "genome", "architectures", "q", "strides")),
    "scale null": ("pixels", put(None, "specs", "q", "scale")),
    "scale text": ("pixels", put("1", "specs", "q", "scale")),
    "one_hot text": ("vector", put("no", "specs", "q", "one_hot")),
    "lr text": ("vector", put("fast", "genome", "hyperparameters", "lr")),
}


def assert_refused(folder):
    with pytest.raises(RunError) as caught:
        read_agent(folder)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert str(folder) in message
    assert len(message) < len(str(folder)) + 250


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_agent_is_refused_in_one_line(tmp_path, damage):
    folder, _ = saved(tmp_path)
    name, how = DAMAGES[damage]
    how(folder / name)
    assert_refused(folder)


@pytest.mark.parametrize("damage", MORE_DAMAGES)
def test_numbers_that_cannot_be_are_refused(tmp_path, damage):
    kind, how = MORE_DAMAGES[damage]
    folder, _ = saved(tmp_path, kind)
    how(folder / FACTS)
    assert_refused(folder)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_weights_that_are_no_floats_are_refused(tmp_path, dtype):
    folder, agent = saved(tmp_path)
    save_file({n: v.to(dtype) for n, v in agent.parameters.items()}, folder / WEIGHTS)
    assert_refused(folder)


def test_no_folder_is_refused(tmp_path):
    assert_refused(tmp_path / "nowhere")


def test_modules_are_plain_torch():
    """Nothing of evorl but three small classes: a colleague can read what he gets."""
    module = module_of(population_of("pixels"), -1 % 16)
    own = {type(m).__name__ for m in module.modules() if type(m).__module__.startswith("evorl")}
    assert own == {"PlainNetwork", "GatedResidual", "DuelingHead"}
    assert isinstance(module, nn.Module)
