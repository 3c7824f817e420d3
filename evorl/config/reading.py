"""From YAML text, a mapping and overrides to a RunConfig, and back."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from evorl.config.overrides import apply_override, plain_copy
from evorl.config.run_config import RunConfig
from evorl.config.wording import describe, explain
from evorl.config.yaml_text import dump_yaml, one_line, parse_yaml, read_yaml
from evorl.errors import ConfigError


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML file and apply overrides such as `algorithm.lr=1e-4`; ConfigError if wrong."""
    data = read_yaml(path)
    return parse_config({} if data is None else data, overrides, source=str(path))


def parse_config(
    data: Mapping[str, Any], overrides: Sequence[str] = (), source: str = "config"
) -> RunConfig:
    """Check a mapping laid out like the YAML file; errors name `source` as where it came from."""
    if not isinstance(data, Mapping):
        got = describe(data)
        message = f"{source}: expected a mapping of sections at the top, got {got}"
        raise ConfigError(one_line(message))
    plain = plain_copy(data, source)
    origins = {apply_override(plain, text, RunConfig): text for text in overrides}
    try:
        return RunConfig.model_validate(plain)
    except ValidationError as error:
        raise ConfigError(explain(error, RunConfig, source, origins)) from None


def parse_text(text: str, source: str) -> RunConfig:
    """Back from `dump_config`'s text, which another process has sent."""
    return parse_config(parse_yaml(text, source), source=source)


def dump_config(config: RunConfig) -> str:
    """YAML text of all options that load_config reads back to an equal configuration."""
    return dump_yaml(config.model_dump())


def json_schema() -> dict[str, Any]:
    """The JSON schema by which editors complete and check configuration files."""
    schema = RunConfig.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
