"""A user's mistake is one line that says what, got what, and what to do."""

from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium import spaces

from evorl.envs import EnvSpec, make_episodes, make_vector_env
from evorl.envs.make import make_env
from evorl.errors import ConfigError

from . import tiny


class Wrap(NamedTuple):
    name: str
    kwargs: dict[str, Any] = {}  # noqa: RUF012


def refusal(env_id, backend="sync", wrappers=(), **kwargs):
    spec = EnvSpec(env_id, backend, kwargs, wrappers)
    if backend == "envpool":
        pytest.importorskip("envpool")
    with pytest.raises(ConfigError) as caught:
        make_vector_env(spec, 1, 2)
    if backend != "native":
        with pytest.raises(ConfigError) as again:
            make_episodes(spec, 2)
        assert str(again.value) == str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def custom(**spaces_):
    return refusal("TinyCustom-v0", **{"observation_space": spaces.Discrete(2), **spaces_})


def test_actions():
    who = "env.id: 'TinyCustom-v0' has"
    assert custom(action_space=spaces.Dict(a=spaces.Discrete(2))) == (
        f"{who} Dict actions; only Discrete, MultiDiscrete, MultiBinary and Box actions are "
        "supported; write a wrapper that makes one of these"
    )
    bounds = "give them bounds in a wrapper of your own, whose action_space is the box that actions"
    for low, high, said in [
        ([-1, -np.inf], [1, 1], "number 1 goes from -inf to 1"),
        ([-1, -1], [np.inf, 1], "number 0 goes from -1 to inf"),
        ([-1, -3.4e38], [1, 3.4e38], "number 1 goes from -3.4e+38 to 3.4e+38"),
    ]:
        box = spaces.Box(np.float32(low), np.float32(high))
        assert custom(action_space=box) == (
            f"{who} Box actions without bounds ({said}); {bounds} are to be scaled to"
        )
    assert custom(action_space=spaces.Box(0, 5, (2,), np.int64)) == (
        f"{who} Box actions of whole numbers (int64); make them Discrete or MultiDiscrete, or "
        "floating-point, in a wrapper of your own"
    )
    assert custom(action_space=spaces.Box(-1, 1, (0,))) == (
        f"{who} actions of shape (0,): none at all"
    )


def test_observations():
    assert custom(observation_space=spaces.MultiDiscrete([2, 3])) == (
        "env.id: 'TinyCustom-v0' has MultiDiscrete observations; only Box, Discrete, MultiBinary, "
        "and Dict and Tuple of what can be flattened are supported (the wrapper "
        "FlattenObservation may help)"
    )
    flat = [Wrap("FlattenObservation")]
    kwargs = {"observation_space": spaces.MultiDiscrete([2, 3])}
    make_vector_env(EnvSpec("TinyCustom-v0", "sync", kwargs, flat), 1, 2).close()
    endless = spaces.Dict(a=spaces.Sequence(spaces.Discrete(2)), b=spaces.Discrete(2))
    assert custom(observation_space=endless).startswith(
        "env.id: 'TinyCustom-v0' has Dict observations; only Box, Discrete, MultiBinary, and Dict"
    )


@pytest.mark.parametrize("backend", ["auto", "sync", "async", "native"])
def test_unknown_id(backend):
    assert refusal("CartPole-v9", backend) == (
        "env.id: no environment 'CartPole-v9' is registered; did you mean CartPole-v1?"
    )
    assert refusal("LunarLandr-v3", backend) == (
        "env.id: no environment 'LunarLandr-v3' is registered; did you mean LunarLander-v3?"
    )
    assert refusal("ALE/Nothing-v5", backend) == (
        "env.id: no environment 'ALE/Nothing-v5' is registered; "
        "write module:id to import the module that registers it (ale_py:ALE/Pong-v5)"
    )


def test_module_in_the_id():
    make_env(EnvSpec(f"{tiny.__name__}:Tiny-v0")).close()
    assert refusal("no_such_module:Tiny-v0") == (
        "env.id: 'no_such_module:Tiny-v0': there is no module 'no_such_module'; it must be in the "
        "current folder, beside the YAML file, or installed (PYTHONPATH=FOLDER adds a folder)"
    )


def test_missing_dependency():
    assert refusal("TinyMissing-v0") == (
        "env.id: 'TinyMissing-v0' needs a package that is not installed: No module named "
        "'a_package_that_is_missing'; try: pip install a_package_that_is_missing"
    )


def test_kwargs():
    assert refusal("CartPole-v1", colour="red") == (
        "env.kwargs: 'CartPole-v1' refuses {'colour': 'red'}: "
        "CartPoleEnv.__init__() got an unexpected keyword argument 'colour'"
    )
    assert refusal("CartPole-v1", "native", colour="red") == (
        "env.backend: native is not possible, its native vector version cannot be made "
        "(CartPoleVectorEnv.__init__() got an unexpected keyword argument 'colour'); "
        "use auto or sync"
    )
    assert refusal("FrozenLake-v1", map_name="9x9") == (
        "env.kwargs: 'FrozenLake-v1' refuses {'map_name': '9x9'}: KeyError: '9x9'"
    )


def test_wrappers():
    assert refusal("CartPole-v1", wrappers=[Wrap("TimeLimits")]) == (
        "env.wrappers[0]: gymnasium.wrappers has no 'TimeLimits'; did you mean TimeLimit?"
    )
    bad = [Wrap("FlattenObservation"), Wrap("TimeLimit", {"steps": 3})]
    assert refusal("CartPole-v1", wrappers=bad) == (
        "env.wrappers[1]: TimeLimit refuses {'steps': 3}: "
        "TimeLimit.__init__() got an unexpected keyword argument 'steps'"
    )
    assert refusal("CartPole-v1", wrappers=[Wrap("Autoreset")]) == (
        "env.wrappers[0]: Autoreset hides where episodes end; leave it out, evorl resets them"
    )
    assert refusal("Pendulum-v1", wrappers=[Wrap("ClipAction")]) == (
        "env.wrappers[0]: ClipAction takes the bounds away that actions are scaled to; leave it "
        "out, evorl clips"
    )
    for name in ("NormalizeObservation", "NormalizeReward"):
        assert refusal("CartPole-v1", wrappers=[Wrap(name)]) == (
            f"env.wrappers[0]: {name} keeps statistics that evaluation would not share; "
            "set env.normalize instead"
        )


def test_own_wrappers():
    own = f"{tiny.__name__}:Doubled"
    wrappers = [Wrap(own), Wrap(own, {"times": 5})]
    with closing(make_vector_env(EnvSpec("Tiny-v0", "sync", {}, wrappers), 1, 1)) as env:
        env.reset([0])
        assert env.step(np.zeros(1, np.int64)).reward == 10 * tiny.reward(1, 0)
    assert refusal("Tiny-v0", wrappers=[Wrap(f"{tiny.__name__}:Doubles")]) == (
        "env.wrappers[0]: module 'tests.envs.tiny' has no 'Doubles'; did you mean Doubled?"
    )
    assert refusal("Tiny-v0", wrappers=[Wrap(f"{tiny.__name__}:Tiny")]) == (
        "env.wrappers[0]: must be a subclass of gymnasium.Wrapper, got"
        " <class 'tests.envs.tiny.Tiny'>"
    )
    assert refusal("Tiny-v0", wrappers=[Wrap("no_such_module:Tiny")]).startswith(
        "env.wrappers[0]: there is no module 'no_such_module'; it must be in the current folder, "
    )
    assert refusal("Tiny-v0", wrappers=[Wrap(own, {"colour": 5})]).startswith(
        f"env.wrappers[0]: {own} refuses {{'colour': 5}}: "
    )


def test_native():
    assert refusal("CartPole-v1", "native", wrappers=[Wrap("FlattenObservation")]) == (
        "env.backend: native is not possible, wrappers wrap single environments, not native "
        "vector ones; use auto or sync"
    )
    assert refusal("Tiny-v0", "native") == (
        "env.backend: native is not possible, 'Tiny-v0' has no native vector version; "
        "use auto or sync"
    )
    assert refusal("TinyNativeDisabled-v0", "native") == (
        "env.backend: native is not possible, its native vector version has autoreset mode "
        "DISABLED; use auto or sync"
    )
    assert refusal("CartPole-v1", "native", max_episode_steps=-1) == (
        "env.backend: native is not possible, native environments read max_episode_steps -1 as an "
        "end at every step; use auto or sync"
    )


def test_envpool():
    assert refusal("CartPoll-v1", "envpool").startswith(
        "env.id: EnvPool has no environment 'CartPoll-v1'; did you mean CartPole-v1"
    )
    assert refusal("QuiteUnlike", "envpool") == (
        "env.id: EnvPool has no environment 'QuiteUnlike'; "
        "use env.backend: auto for a Gymnasium one"
    )
    assert refusal("CartPole-v1", "envpool", wrappers=[Wrap("FlattenObservation")]) == (
        "env.wrappers: EnvPool takes no Gymnasium wrappers; leave them out, or use "
        "env.backend: sync"
    )
    assert refusal("CartPole-v1", "envpool", batch_size=3) == (
        "env.kwargs: batch_size is set by evorl; leave it out"
    )
    assert refusal("CartPole-v1", "envpool", colour="red") == (
        "env.kwargs: 'CartPole-v1' refuses {'colour': 'red'}: "
        "Config.__new__() got an unexpected keyword argument 'colour'"
    )
    assert refusal("CartpoleSwingup-v1", "envpool").startswith(
        "env.id: 'CartpoleSwingup-v1' has Dict observations; only Box"
    )
