"""No test of tracking sees an account, or leaves anything outside its own folder."""

import os

import pytest


def _alone(patch, home):
    for name in [*os.environ]:
        if name.startswith("WANDB_"):
            patch.delenv(name)
    patch.setenv("HOME", str(home))
    patch.setenv("NETRC", str(home / "netrc"))
    patch.setenv("OMP_NUM_THREADS", "1")
    patch.chdir(home)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """An empty home, which is the current folder, too."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("home")
        _alone(patch, folder)
        yield folder
