"""The pages that users read: links lead somewhere, options exist, configurations load."""

import re
import sys
from pathlib import Path

import pytest

from evorl.cli import cli
from evorl.config import load_config
from evorl.config.json_schema import make_json_schema

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
READ = [page for page in PAGES if page.name not in ("CONTRIBUTING.md", "configuration.md")]


def ids(page):
    return page.name


def anchors(page):
    """What a link can lead to within a page, as GitHub names it."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```|`[^`\n]+`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        other = page.parent / path if path else page
        assert other.exists(), target
        assert not anchor or anchor in anchors(other), target


def test_the_readme_leads_to_every_page():
    text = (ROOT / "README.md").read_text()
    for page in (ROOT / "docs").iterdir():
        assert f"(docs/{page.name})" in text, page.name


def sections():
    """All options as section.key, with the sections that they are in."""
    found = set()

    def add(properties, above):
        for name, value in properties.items():
            found.add(f"{above}{name}")
            for target in [
                one["$ref"] for one in (value, *value.get("anyOf", ())) if "$ref" in one
            ]:
                add(definitions[target.split("/")[-1]].get("properties", {}), f"{above}{name}.")

    schema = make_json_schema()
    definitions = schema["$defs"]
    add(schema["properties"], "")
    return found


@pytest.mark.parametrize("page", READ, ids=ids)
def test_options_exist(page):
    known = sections()
    heads = "|".join(sorted(name for name in known if "." not in name))
    text = page.read_text().replace("batch_sise", "batch_size")  # a mistake that is shown
    text = re.sub(r"\]\([^)\s]+\)", "", text)  # not evolution.md
    for option in re.findall(rf"(?<![\w./\[])((?:{heads})(?:\.[a-z_]+)+)(?![\w/(])", text):
        assert option in known, option


@pytest.mark.parametrize("page", READ, ids=ids)
def test_commands_exist(page):
    called = r"(?:`|^    |^\$ )(?:\.venv/bin/)?evorl ([a-z]+)"
    for command in re.findall(called, page.read_text(), re.MULTILINE):
        assert command in cli.commands, command


@pytest.mark.parametrize("page", READ, ids=ids)
def test_configurations_load(page, tmp_path, monkeypatch):
    if code := re.search(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        (tmp_path / "my_module.py").write_text(code[1])  # for names such as my_module:SoftDQN
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "my_module", None)  # so that it is gone again afterwards
    del sys.modules["my_module"]
    for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        env = "" if re.search(r"^env:", block, re.MULTILINE) else "env: {id: CartPole-v1}\n"
        (tmp_path / "config.yaml").write_text(env + block)
        load_config(tmp_path / "config.yaml")


def test_configurations_of_the_readme_work_in_any_folder():
    """They name no file that is in this repository only."""
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks
    assert not any("configs/" in block or "$schema" in block for block in blocks)
