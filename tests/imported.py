"""All that a run imports: processes that are forked from here need not do so again."""

import importlib
import pkgutil
from contextlib import suppress

import accelerate  # noqa: F401
import gymnasium.envs.classic_control  # noqa: F401
import torch.distributed.elastic.agent.server.local_elastic_agent
import torch.distributed.launcher.api  # noqa: F401

import evorl

for module in pkgutil.walk_packages(evorl.__path__, "evorl."):
    if not module.name.endswith("__main__"):
        with suppress(ImportError):  # what it needs is optional
            importlib.import_module(module.name)
