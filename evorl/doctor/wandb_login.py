"""Weights & Biases: installed, and logged in? Nothing is sent to find out."""

import importlib
import importlib.metadata
import importlib.util
import netrc
import os
from pathlib import Path
from urllib.parse import urlsplit

from evorl.doctor.finding import Finding

HOST = "api.wandb.ai"


def check_wandb() -> Finding:
    """Optional: runs are written down without it."""
    if importlib.util.find_spec("wandb") is None:
        return Finding("missing", "not installed", "pip install wandb, if you want its dashboards")
    importlib.import_module("wandb")
    version = importlib.metadata.version("wandb")
    if not logged_in():
        return Finding(
            "missing", f"{version}, not logged in", "wandb login, or use it offline only"
        )
    return Finding("ok", f"{version}, logged in")


def logged_in() -> bool:
    """Whether there is a key for the server, in the environment or in the netrc file."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    base = os.environ.get("WANDB_BASE_URL", "")
    host = urlsplit(base).netloc or HOST
    names = [Path.home() / name for name in (".netrc", "_netrc")]
    given = os.environ.get("NETRC")
    for file in [Path(given)] if given else names:
        try:
            if host in netrc.netrc(file).hosts:
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False
