"""The page is one file, whatever names are in it, and leaves other files alone."""

import json
import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from evorl.errors import RunError
from evorl.reporting.page import MARK, SCRIPTS, json_for_html, render, write_page

EVIL = "</script><script>alert(1)</script><!--\u2028 ]]> & \"'"


class Parsed(HTMLParser):
    """The elements of a page, and the text in each script."""

    def __init__(self, text):
        super().__init__()
        self.found, self.texts, self.inside = [], {}, None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.inside = dict(attrs).get("id", tag)

    def handle_data(self, data):
        self.texts[self.inside] = self.texts.get(self.inside, "") + data

    def handle_endtag(self, tag):
        self.inside = None


def test_names_cannot_become_markup():
    page = Parsed(render({"kind": "report", "data": {"name": EVIL}}, EVIL))
    assert [tag for tag, _ in page.found].count("script") == 2
    assert json.loads(page.texts["data"])["data"]["name"] == EVIL
    assert page.texts["title"].startswith("</script>")


def test_json_keeps_what_it_says():
    data = {EVIL: [EVIL, 1.5, None, "ü", "\ud800"]}
    text = json_for_html(data)
    assert not re.search("[<>&\u2028]", text)
    assert json.loads(text) == data


def test_nothing_is_loaded_from_elsewhere():
    text = render({"kind": "report", "data": {}}, "x")
    page = Parsed(text)
    for _, attributes in page.found:
        assert "src" not in attributes
        assert attributes.get("href", "data:").startswith("data:")
    policy = next(a["content"] for _, a in page.found if "http-equiv" in a)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src 'none'" in policy
    assert "unsafe" not in policy
    assert "url(" not in page.texts["style"]
    assert "@import" not in page.texts["style"]
    served = Parsed(render({"live": {"url": "/"}}, "x"))
    assert any("connect-src 'self'" in a.get("content", "") for _, a in served.found)


def test_every_file_of_the_page_is_used():
    names = {file.name for file in files("evorl.reporting").joinpath("web").iterdir()}
    assert names == {*SCRIPTS, "page.html", "style.css"}


def test_no_script_writes_markup():
    for name in SCRIPTS:
        text = files("evorl.reporting").joinpath("web", name).read_text(encoding="utf-8")
        for forbidden in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("):
            assert forbidden not in text, f"{name}: {forbidden}"


def test_only_reports_are_replaced(tmp_path):
    path = tmp_path / "report.html"
    write_page(path, MARK + "one")
    write_page(path, MARK + "two")
    assert path.read_text() == MARK + "two"
    other = tmp_path / "config.yaml"
    other.write_text("mine")
    with pytest.raises(RunError, match="no report"):
        write_page(other, MARK)
    with pytest.raises(RunError, match="is no regular file"):
        write_page(tmp_path, MARK)
    with pytest.raises(RunError, match="cannot be written"):
        write_page(tmp_path / "nowhere" / "report.html", MARK)
    assert other.read_text() == "mine"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.yaml", "report.html"]
