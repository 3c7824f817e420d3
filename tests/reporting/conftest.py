"""Headless Chromium, installed where it is missing and can be; a home without an account."""

import os
import shutil
import subprocess

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
APT = ["apt-get", "install", "-y", "-q", "--no-install-recommends", "chromium", "fonts-dejavu-core"]


def find_chromium():
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def install_chromium():
    """None if it worked, else why not."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return "no chromium here, and only root on Debian can install it: apt-get install chromium"
    quiet = {"env": os.environ | {"DEBIAN_FRONTEND": "noninteractive"}, "capture_output": True}
    for commands in ([APT], [["apt-get", "update", "-q"], APT]):
        try:
            done = [subprocess.run(each, timeout=900, **quiet) for each in commands][-1]
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"no chromium here, and apt-get cannot install it: {error}"
        if done.returncode == 0:
            return None
    return "no chromium here, and apt-get cannot install it: " + done.stderr.decode()[-200:]


@pytest.fixture(scope="session")
def chromium():
    """A browser, headless."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is in the dev extra")
    problem = install_chromium() if find_chromium() is None else None
    if problem or find_chromium() is None:
        pytest.skip(problem or "apt-get installed no chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_chromium(),
            args=["--no-sandbox", "--disable-dev-shm-usage"],
            timeout=120_000,
        )
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium):
    """Open a page and wait until it is drawn; at the end it must have been silent, and alone."""
    contexts, problems, requests = [], [], []

    def call(url, width=1280, scheme="light", height=900, **options):
        context = chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, **options
        )
        contexts.append(context)
        context.set_default_timeout(60_000)
        page = context.new_page()
        page.on("console", lambda message: problems.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append("a dialog") or dialog.dismiss())
        page.on("request", lambda request: requests.append(request.url))
        page.goto(url)
        page.wait_for_selector("html[data-ready]")
        page.wait_for_function(
            "() => [...document.querySelectorAll('svg.chart')].every(s => s.childElementCount)"
        )
        return page

    call.problems, call.requests = problems, requests
    yield call
    for context in contexts:
        context.close()
    assert problems == []


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
