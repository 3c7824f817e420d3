"""A user's mistake is one line that says what, got what, and what to do."""

from typing import Any, NamedTuple

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


def test_actions():
    assert refusal("Pendulum-v1") == (
        "env.id: 'Pendulum-v1' has Box actions; only Discrete actions are supported"
    )
    assert refusal(
        "TinyCustom-v0",
        observation_space=spaces.Discrete(2),
        action_space=spaces.MultiDiscrete([2, 2]),
    ) == ("env.id: 'TinyCustom-v0' has MultiDiscrete actions; only Discrete actions are supported")


def test_observations():
    assert refusal("Blackjack-v1") == (
        "env.id: 'Blackjack-v1' has Tuple observations; only Box, Discrete and MultiBinary "
        "are supported (the wrapper FlattenObservation may help)"
    )
    flat = EnvSpec("Blackjack-v1", "sync", {}, [Wrap("FlattenObservation")])
    make_vector_env(flat, 1, 2).close()


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
        "env.id: cannot import 'no_such_module' for 'no_such_module:Tiny-v0': "
        "No module named 'no_such_module'"
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
    assert refusal("Pendulum-v1", "envpool") == (
        "env.id: 'Pendulum-v1' has Box actions; only Discrete actions are supported"
    )
