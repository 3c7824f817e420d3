"""Options that were changed but have no effect, given the others."""

from collections.abc import Iterator

from pydantic import BaseModel

from evorl.config.sections import RunConfig


def unused_options(config: RunConfig, images: bool) -> list[str]:
    """One line for each; `images` says whether the observations are images."""
    algorithm, replay = config.algorithm, config.replay
    found: list[str] = []
    if algorithm.target_update == "periodic":
        found += _changed("algorithm", algorithm, "target_update: periodic", "tau")
    else:
        found += _changed("algorithm", algorithm, "target_update: soft", "target_period")
    if replay.kind == "uniform":
        names = ("alpha", "beta_start", "beta_end", "priority_eps")
        found += _changed("replay", replay, "kind: uniform", *names)
    if not images:
        names = ("channels", "kernels", "strides", "channels_last")
        found += _changed("network", config.network, "observations that are no images", *names)
    return found


def _changed(section: str, values: BaseModel, why: str, *names: str) -> Iterator[str]:
    for name in names:
        value = getattr(values, name)
        if value != type(values).model_fields[name].default:
            yield f"{section}.{name}={value} has no effect with {why}"
