"""docs/configuration.md says what the configuration is."""

import re
from pathlib import Path

from evorl.config import RunConfig, json_schema
from evorl.config.schema import markdown

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
    schema = json_schema()
    keys = {
        key
        for definition in schema["$defs"].values()
        for arm in definition.get("anyOf", [definition])
        for key in arm.get("properties", {})
    }
    found = tables()
    assert {key for rows in found.values() for key in rows} >= keys
    assert all(len(cells) == 4 and cells[3] for rows in found.values() for cells in rows.values())
    sections = {title.partition(" ")[0] for title in found}
    assert set(RunConfig.model_fields) <= sections | set(found["The run"])


def test_rows_of_each_kind():
    found = tables()
    assert found["env"]["id"][:3] == ["text", "required", "≥ 1 characters"]
    assert found["algorithm name: dqn"]["lr"][:3] == ["number", "`0.001`", "> 0, ≤ 1"]
    assert found["network"]["hidden"][:3] == [
        *("list of whole numbers", "`[64, 64]`", "≥ 1, ≤ 4,096 each, ≥ 1, ≤ 8 elements")
    ]
    assert found["evolution.spaces"]["lr"][:3] == [
        *("`SpaceConfig`", "`{kind: log, low: 0.0001, high: 0.01}`", "> 0, ≤ 1")
    ]
    assert found["SpaceConfig"]["kind"][1] == "required"
    assert found["population.agents[i]"]["lr"][:3] == ["number", "—", "> 0, ≤ 1"]
    assert found["evolution.selection kind: tournament"]["size"][:2] == ["whole number", "`2`"]
    assert found["mesh"]["population"][:3] == ["`auto` or whole number", "`auto`", "≥ 1, ≤ 4,096"]
    assert found["budget"]["stop_at"][:2] == ["number", "—"]
    assert found["evolution"]["mutation"][:2] == ["section", "below"]
    assert found["The run"]["seed"][2] == "≥ 0, ≤ 4,294,967,295"
