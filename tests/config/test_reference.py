"""docs/configuration.md says what the configuration is."""

import re
from pathlib import Path

from evorl.config import RunConfig, make_json_schema
from evorl.config.json_schema import markdown

PAGE = Path(__file__).parent.parent.parent / "docs" / "configuration.md"


def test_the_page_is_up_to_date():
    advice = "make it again: python -m evorl schema --markdown > docs/configuration.md"
    assert PAGE.read_text(encoding="utf-8") == markdown(), advice


def tables():
    """Rows by heading and key, as cells."""
    found = {}
    for part in re.split(r"^#+ ", markdown(), flags=re.MULTILINE)[2:]:
        title = part.splitlines()[0].strip("`").replace("`, `", " ")
        rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", part, flags=re.MULTILINE)
        found[title] = {key: cells.split(" | ") for key, cells in rows}
    return found


def test_every_section_and_key_is_there():
    schema = make_json_schema()
    keys = {
        key
        for definition in schema["$defs"].values()
        for arm in definition.get("anyOf", [definition])
        for key in arm.get("properties", {})
    }
    found = tables()
    titles = {title.partition(" ")[0].rpartition(".")[2] for title in found}
    assert {key for rows in found.values() for key in rows} | titles >= keys
    assert all(len(cells) == 3 and cells[2] for rows in found.values() for cells in rows.values())
    sections = {title.partition(" ")[0] for title in found}
    assert set(RunConfig.model_fields) <= sections | set(found["The run"])


def test_rows_of_each_kind():
    found = tables()
    assert found["env"]["id"][:2] == ["text", "required"]
    assert found["algorithm name: dqn"]["lr"][:2] == ["number > 0, ≤ 1", "`0.001`"]
    assert found["algorithm name: ppo"]["lr"][:2] == ["number > 0, ≤ 1", "`0.0003`"]  # its own
    assert found["algorithm name: dqn"]["learn_step"][0] == "whole number ≥ 1"
    assert found["network"]["hidden"][:2] == ["list of whole numbers ≥ 1, ≤ 4,096", "`[64, 64]`"]
    assert found["evolution.spaces"]["lr"][:2] == [
        *("`SpaceConfig` > 0, ≤ 1", "`{kind: log, low: 0.0001, high: 0.01}`")
    ]
    assert found["SpaceConfig"]["kind"][1] == "required"
    assert found["population.agents[i]"]["lr"][:2] == ["number > 0, ≤ 1", "—"]
    assert found["evolution.selection kind: tournament"]["size"][1] == "`2`"
    assert found["mesh"]["population"][:2] == ["`auto` or whole number ≥ 1, ≤ 4,096", "`auto`"]
    assert found["budget"]["stop_at"][:2] == ["number", "—"]
    assert found["The run"]["seed"][0] == "whole number ≥ 0, ≤ 4,294,967,295"
