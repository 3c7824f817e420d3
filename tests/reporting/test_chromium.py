"""The page in real headless Chromium: charts, hover, filters, no errors, no requests."""

import json
import re
import threading
from importlib.resources import files
from itertools import pairwise

import numpy as np
import pytest

from evorl.cli import cli
from evorl.reporting import server as serving
from evorl.reporting.notes import read_notes
from evorl.reporting.page import render, write_page
from evorl.reporting.run_data import read_payload
from evorl.runs import decimals
from evorl.runs.directory import RunDirectory
from tests.synthetic import FAMILY, birth, initial, make_run

from .runs import finished, go_on, going, just_begun, metrics, with_actors, with_curves

pytestmark = pytest.mark.slow

CHARTS = {
    "fitness": "path.line, path.crowd, path.record, path.band",
    "tree": "path.node, path.edge, path.line",
    "hyperparameter-lr": "path.line, path.crowd",
    "hyperparameter-gamma": "path.line, path.crowd",
    "hyperparameter-batch_size": "path.line, path.crowd",
    "parallel": "path.strand, line.rule",
    "mutations": "path.dots, line.mean",
    "architectures": "path.layer, path.through",
    "exploration": "path.line, path.crowd",
    "loss": "path.line, path.crowd",
    "speed": "path.plain",
}
SIZES = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]


def report(tmp_path, *paths, change=lambda data: None):
    """The file of a report, as an address."""
    data = read_payload(paths)
    change(data)
    file = tmp_path / "page.html"
    write_page(file, render({"kind": "report", "data": data, "live": None}, "a report"))
    return file.as_uri()


@pytest.fixture
def address(tmp_path):
    return report(tmp_path, finished(tmp_path).path)


@pytest.fixture
def dashboard(tmp_path, monkeypatch):
    """A dashboard that asks often, of three runs; name it before `visit`, whose pages go first."""
    monkeypatch.setattr(serving, "MILLISECONDS", 100)
    finished(tmp_path / "runs")
    going(tmp_path / "runs")
    just_begun(tmp_path / "runs" / "nested")
    with serving.Dashboard(tmp_path / "runs", port=0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.address
        server.shutdown()
        thread.join()


def chart(page, key):
    return page.locator(f"svg[data-chart='{key}']")


def path_of(page, key, name):
    """The d of a chart's path."""
    return chart(page, key).locator(f"path.{name}").first.get_attribute("d")


def hover(page, key):
    """Move the mouse over a chart until something is found there; what the tooltip says."""
    node = chart(page, key)
    node.scroll_into_view_if_needed()
    box = node.bounding_box()
    for down in (0.5, 0.25, 0.7):
        for right in (0.5, 0.2, 0.8, 0.35, 0.65, 0.95):
            page.mouse.move(box["x"] + right * box["width"], box["y"] + down * box["height"])
            if page.locator("#tooltip").is_visible():
                return page.locator("#tooltip").inner_text()
    raise AssertionError(f"{key}: no tooltip")


def fits(page):
    return page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_every_chart_is_drawn_and_hovers(visit, address, width, scheme):
    page = visit(address, width, scheme)
    drawn = page.eval_on_selector_all("svg.chart", "all => all.map(one => one.dataset.chart)")
    assert set(drawn) == set(CHARTS)
    for key, marks in CHARTS.items():
        for mark in marks.split(", "):
            found = chart(page, key).locator(mark)
            assert found.count() > 0, f"{key}: no {mark}"
            size = found.first.evaluate(
                "one => { const b = one.getBBox(); return b.width + b.height }"
            )
            assert size > 0, f"{key}: {mark} has no extent"
        assert hover(page, key)
    assert fits(page)
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, re.findall(r"\d+", paper)[:3])) / 3
    assert (brightness > 200) == (scheme == "light")
    assert visit.requests == [address]


def test_the_headline(visit, address):
    page = visit(address)
    assert page.locator("h1").inner_text() == "family"
    assert page.locator("#score").inner_text().split("\n")[0] == "450.0"
    assert "445.0 to 455.0" in page.locator("#score").inner_text()
    assert "CartPole-v1" in page.locator(".env").inner_text()
    assert "name=again" in page.locator("#config").inner_text()
    page.locator("#config summary").click()
    assert "id: CartPole-v1" in page.locator("#config details pre").inner_text()


def test_the_best_line_goes_through_its_ancestors(visit, address, tmp_path):
    ancestry = RunDirectory(tmp_path / "family").lineage().ancestry(4, until=4)
    expected = [line.fitness for one in ancestry for line in one.fitness]
    assert expected == [0.0, 201.0, 302.0, 303.0, 404.0]
    page = visit(address)
    points = re.findall(r"[ML]([\d.]+) ([\d.]+)", path_of(page, "fitness", "line"))
    heights = [float(y) for _, y in points]
    assert len(heights) == len(expected)
    scale = (heights[-1] - heights[0]) / (expected[-1] - expected[0])
    for height, value in zip(heights, expected, strict=True):
        assert height == pytest.approx(heights[0] + scale * (value - expected[0]), abs=0.2)
    assert all(float(a[0]) < float(b[0]) for a, b in pairwise(points))
    assert path_of(page, "tree", "line").count("C") == len(expected) - 1


def test_another_line_can_be_followed(visit, address):
    page = visit(address)
    best = path_of(page, "fitness", "line")
    page.get_by_label("whose line of descent").select_option("0")
    other = path_of(page, "fitness", "line")
    assert other != best
    assert len(re.findall("[ML]", other)) == 5
    page.get_by_label("whose line of descent").select_option("best")
    assert path_of(page, "fitness", "line") == best
    chart(page, "tree").focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    assert path_of(page, "fitness", "line") == other


def test_filters(visit, address):
    expect = pytest.importorskip("playwright.sync_api").expect  # it waits until it is drawn
    page = visit(address)
    page.locator("#fitness [data-key=crowd]").uncheck()
    expect(chart(page, "fitness").locator(".crowd")).to_have_count(0)
    expect(chart(page, "loss").locator(".crowd")).to_have_count(0)
    page.locator("#fitness [data-key=record]").uncheck()
    expect(chart(page, "fitness").locator(".record")).to_have_count(0)
    page.locator("#fitness [data-key=crowd]").check()
    expect(chart(page, "fitness").locator(".crowd")).to_have_count(1)

    edges = path_of(page, "tree", "edge").count("M")
    page.locator("#tree [data-key=hyperparameters]").uncheck()
    expect(chart(page, "tree").locator(".dim")).to_have_count(1)
    assert path_of(page, "tree", "edge").count("M") == edges - 2 == 1

    page.locator("#hyperparameters [data-key=gamma]").uncheck()
    expect(chart(page, "hyperparameter-gamma")).to_have_count(0)
    expect(chart(page, "hyperparameter-lr")).to_have_count(1)

    layers = chart(page, "architectures").locator(".layer").count()
    page.locator("#architectures [data-key='64-96 relu']").uncheck()
    page.wait_for_function(
        "least => document.querySelectorAll('[data-chart=architectures] .layer').length < least",
        arg=layers,
    )


def evolved(tmp_path):
    """A run of 16 agents in which fitness goes with lr, and with nothing else."""
    directory = make_run(tmp_path, "evolved")
    random = np.random.default_rng(0)
    rates = 10 ** random.uniform(-4, -2, 16)
    genomes = [initial(i, lr=float(rates[i]), gamma=0.9 + 0.006 * (i % 3)) for i in range(16)]
    directory.append_lineage([birth(genome, i, None) for i, genome in enumerate(genomes)])
    for generation in range(4):
        fitness = (100 * np.log10(rates) + 500 + generation).tolist()
        names = genomes[0].hyperparameters
        values = {name: [genome.hyperparameters[name] for genome in genomes] for name in names}
        rows = {"ids": list(range(16)), "alive": [True] * 16, "hyperparameters": values}
        rows |= {"loss": [1.0] * 16, "exploration": [0.5] * 16, "fitness": fitness}
        directory.append_metrics(metrics(generation, [0]) | rows)
    return directory.path


@pytest.mark.parametrize(("width", "scheme"), [SIZES[0], SIZES[3]])
def test_what_mattered_and_brushing(visit, tmp_path, width, scheme):
    page = visit(report(tmp_path, evolved(tmp_path)), width, scheme)
    bars = chart(page, "importance").locator("text.strong")
    assert bars.all_text_contents() == ["lr"]  # of gamma the interval reaches zero
    assert "Children inherit" in page.locator("#importance").inner_text()
    assert "importance" in hover(page, "importance")

    said = page.locator("#parallel p[role=status]")
    page.get_by_text("only the best quarter").click()
    assert said.inner_text().startswith("16 of 64 evaluations, of 5 agents; their mean")
    assert chart(page, "parallel").locator("path.off").count() == 1
    page.get_by_text("show all").click()
    assert chart(page, "parallel").locator("path.off").count() == 0
    chart(page, "parallel").scroll_into_view_if_needed()
    axis = chart(page, "parallel").locator("line.rule").nth(1).bounding_box()  # lr
    x, y = axis["x"] + axis["width"] / 2, axis["y"] + axis["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + axis["width"], y - axis["height"])  # from its middle up
    page.mouse.up()
    above = sum(4 for rate in rates_of(page) if rate > 10**-3)
    assert abs(int(said.inner_text().split()[0]) - above) <= 8  # the scale is a little wider
    assert "Chosen: lr" in said.inner_text()
    page.mouse.click(x, y)
    assert said.inner_text().startswith("Drag along")
    assert fits(page)


def rates_of(page):
    data = json.loads(page.locator("#data").text_content())["data"]["runs"][0]
    return [agent["hyperparameters"]["lr"] for agent in data["agents"]]


def test_the_axis_of_time(visit, address):
    page = visit(address)
    titles = {}
    for axis in ("env_steps", "generation", "seconds"):
        page.locator(f"input[value={axis}]").check(force=True)
        titles[axis] = chart(page, "fitness").text_content()
    assert "training steps" in titles["env_steps"]
    assert "generation" in titles["generation"]
    assert "10 s" in titles["seconds"]


def test_keys_and_touch(visit, address):
    page = visit(address, has_touch=True)
    tip = page.locator("#tooltip")
    chart(page, "fitness").focus()
    page.keyboard.press("End")
    assert "agent 4 · generation 4" in tip.inner_text()
    page.keyboard.press("ArrowLeft")
    assert "agent 3 · generation 3" in tip.inner_text()
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    box = chart(page, "tree").bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 3)
    assert "generation 2" in tip.inner_text()
    page.touchscreen.tap(5, 5)
    assert tip.is_hidden()


def test_the_mutation_shows_on_hover(visit, address):
    page = visit(address)
    chart(page, "tree").focus()
    page.keyboard.press("End")
    text = page.locator("#tooltip").inner_text()
    assert "hyperparameters" in text
    assert "gamma 0.99 → 0.995" in text


def test_the_theme_can_be_chosen(visit, address):
    page = visit(address)
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.locator("#theme").click()
    dark = page.evaluate(colour)
    assert dark != light
    page.locator("#theme").click()
    assert page.evaluate(colour) == light


def test_names_with_markup_are_text(visit, tmp_path):
    evil = "</script><img src=x onerror=alert(1)><b>bold</b>"
    directory = finished(tmp_path)
    folder = tmp_path / evil.replace("/", "∕")
    directory.path.rename(folder)

    def rename(data):
        run = data["runs"][0]
        run["name"] = run["env"] = run["agents"][0]["architecture"] = evil
        run["agents"][3]["change"] = run["agents"][3]["mutation"] = evil
        run["warnings"] = [evil]

    page = visit(report(tmp_path, folder, change=rename))
    assert page.locator("h1").inner_text() == evil
    assert page.locator("main img, main b img, main script").count() == 0
    for key in CHARTS:
        hover(page, key)
    assert page.locator("img").count() == 0


def test_no_request_can_leave(dashboard, visit, address):
    page = visit(address)
    asked = page.evaluate(
        "url => fetch(url, {mode: 'no-cors'}).then(() => 'sent', () => 'refused')", dashboard
    )
    assert asked == "refused"
    loaded = page.evaluate(
        """url => new Promise(done => {
            const image = new Image();
            image.onload = () => done('sent');
            image.onerror = () => done('refused');
            image.src = url;
        })""",
        dashboard + "image.png",
    )
    assert loaded == "refused"
    refused = [text for text in visit.problems if "Content Security Policy" in text]
    assert refused
    visit.problems.clear()  # these two were asked for


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_a_run_with_actors(visit, tmp_path, width, scheme):
    page = visit(report(tmp_path, with_actors(tmp_path).path), width, scheme)
    for key in ("lag", "queue", "frames", "alive"):
        line = chart(page, f"actors-{key}").locator("path.plain").get_attribute("d")
        assert line.count("L") == 2  # three generations
        assert "generation" in hover(page, f"actors-{key}")
    assert chart(page, "actors-lag").locator("path.record").count() == 1  # the most
    rows = page.locator("#actors tbody tr")
    cells = [row.locator("td").all_inner_texts() for row in rows.all()]
    assert [(reason, number) for reason, number, _ in cells] == [
        ("generation", "12"),
        ("lag", "8"),
        ("range", "3"),
        ("<b>new</b>", "1"),
    ]
    assert "actors.max_lag" in cells[1][2]
    told = page.locator("#actors").inner_text()
    assert "60 messages were taken; 1 actor gone, and 0 messages with them." in told
    assert fits(page)


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_training_curves_within_generations(visit, tmp_path, width, scheme):
    page = visit(report(tmp_path, with_curves(tmp_path).path), width, scheme)
    for name in ("return", "length", "loss", "updates_per_step"):
        line = path_of(page, f"training-{name}", "line")
        assert len(re.findall("[ML]", line)) == 16  # four points of four generations
        assert "generation" in hover(page, f"training-{name}")
    heights = re.findall(r"[ML][\d.]+ ([\d.]+)", path_of(page, "training-return", "line"))
    assert sorted(map(float, heights), reverse=True) == list(map(float, heights))  # it rises
    assert len(re.findall("[ML]", path_of(page, "gradient_norm", "line"))) == 4
    assert chart(page, "loss").count() == 0  # the finer one has taken its place
    for axis in ("generation", "seconds"):
        page.locator(f"input[value={axis}]").check(force=True)
        page.wait_for_timeout(50)
        assert len(re.findall("[ML]", path_of(page, "training-return", "line"))) == 16
    assert fits(page)


def test_digits_are_those_of_the_commands(chromium):
    random = np.random.default_rng(5)
    errors = 10.0 ** random.uniform(-9, 5, 300) * (random.random(300) > 0.1)
    figures = 10.0 ** random.uniform(-5, 6, 300) * random.choice([-1, 0, 1], 300, p=[0.4, 0.1, 0.5])
    pairs = np.stack([figures, errors], -1).tolist()
    cases = [[[figure], [error]] for figure, error in pairs]
    cases += [np.transpose(pairs[i : i + 5]).tolist() for i in range(50)]
    cases += [[[figure], []] for figure in figures.tolist()]
    rule = files("evorl.reporting").joinpath("web", "format.js").read_text(encoding="utf-8")
    page = chromium.new_page()
    code = f"cases => {{ {rule}\nreturn cases.map((one) => decimals(...one)); }}"
    found = page.evaluate(code, cases)
    page.close()
    assert found == [decimals(*case) for case in cases]


@pytest.mark.parametrize(("width", "scheme"), [SIZES[0], SIZES[3]])
def test_a_run_that_has_failed(visit, tmp_path, width, scheme):
    directory = going(tmp_path)
    failure = {"reason": "all are dead; start again", "lasting": True}
    (directory.path / "failure.json").write_text(json.dumps(failure))
    page = visit(report(tmp_path, directory.path), width, scheme)
    assert page.locator("#score").inner_text().startswith("failed")
    assert page.locator(".warning").inner_text() == "The run has failed: all are dead; start again"
    assert "evorl resume" not in page.locator("#config").inner_text()
    assert "It would fail again as it is" in page.locator("#config").inner_text()
    assert fits(page)


@pytest.mark.parametrize(("width", "scheme"), [SIZES[0], SIZES[3]])
def test_a_run_that_has_just_begun(visit, tmp_path, width, scheme):
    directory = just_begun(tmp_path)
    with directory.locked():
        page = visit(report(tmp_path, directory.path), width, scheme)
    assert "running" in page.locator("#score").inner_text()
    assert "no generation has ended yet" in chart(page, "tree").text_content()
    assert fits(page)


@pytest.mark.parametrize(("width", "scheme"), [SIZES[0], SIZES[3]])
def test_a_run_that_is_not_finished(visit, tmp_path, width, scheme):
    page = visit(report(tmp_path, going(tmp_path).path), width, scheme)
    assert "not finished" in page.locator("#score").inner_text()
    assert page.locator(".progress").count() == 1
    assert fits(page)


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_several_runs(visit, tmp_path, width, scheme):
    paths = [finished(tmp_path, "a-1").path, finished(tmp_path, "a-2").path, going(tmp_path).path]
    page = visit(report(tmp_path, *paths), width, scheme)
    assert chart(page, "scores").locator("circle:not(.ring)").count() == 2
    assert chart(page, "curves").locator("path.curve").count() == 3
    hover(page, "scores")
    hover(page, "curves")
    page.locator("#scores [data-key=a-1]").uncheck()
    page.wait_for_function(
        "() => document.querySelectorAll('[data-chart=curves] .curve').length === 2"
    )
    before = path_of(page, "curves", "curve")
    page.get_by_label("curve").select_option("mean")
    page.wait_for_function(
        "before => document.querySelector('[data-chart=curves] .curve').getAttribute('d')"
        " !== before",
        arg=before,
    )
    page.locator("#which").select_option("going")
    assert page.locator("article h1").inner_text() == "going"
    assert "450.0" in page.locator("#groups").inner_text()
    assert fits(page)


def test_a_late_winner_is_never_left_out(visit, tmp_path):
    """As on MountainCar: nobody finds the flag, and then one agent does."""

    def change(data):
        for run in data["runs"]:
            run["rows"]["best"] = [-200.0] * 4 + [-110.0]
            for agent in run["agents"]:
                agent["fitness"] = [-200.0 for _ in agent["fitness"]]
        data["runs"][0]["agents"][1]["fitness"][0] = -110.0  # not of the best line

    paths = [finished(tmp_path, "a-1").path, finished(tmp_path, "a-2").path]
    page = visit(report(tmp_path, *paths, change=change))
    heights = re.findall(r"[ML][\d.]+ (-?[\d.]+)", path_of(page, "curves", "curve"))
    assert len(heights) == 5
    assert min(map(float, heights)) >= 0
    assert "-110" in page.locator("#tree").inner_text().replace("−", "-")


def test_a_child_of_the_command_line(visit, tmp_path, monkeypatch):
    directory = finished(tmp_path)
    cli.main(["report", str(directory.path)], standalone_mode=False)
    page = visit((directory.path / "report.html").as_uri())
    assert page.title() == "family – evorl"
    assert chart(page, "tree").locator(".node").count() > 0


def test_the_list_says_what_is_off(dashboard, visit, tmp_path):
    failed, busy = going(tmp_path / "runs", "failed"), with_actors(tmp_path / "runs")
    failure = {"reason": "no room " * 100, "lasting": False}
    (failed.path / "failure.json").write_text(json.dumps(failure))
    with busy.locked():
        page = visit(dashboard)
    told = page.locator("tr[data-run=failed] .state").inner_text()
    assert told.startswith("failed: no room")
    assert len(told) < 250
    assert page.locator("tr[data-run=actors] .badge.less").inner_text() == "1 of 2 actors"
    assert page.locator(".badge").count() == 1
    assert fits(page)


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_the_list_of_the_dashboard(dashboard, visit, width, scheme):
    page = visit(dashboard, width, scheme)
    rows = page.locator("tbody tr")
    assert rows.count() == 3
    assert "450.0" in page.locator("tr[data-run=family]").inner_text()
    assert "best so far 92" in page.locator("tr[data-run=going]").inner_text()
    assert fits(page)
    page.get_by_label("filter").fill("nest")
    assert rows.count() == 1
    page.get_by_label("filter").fill("")
    for name in ("family", "going"):
        page.get_by_label(f"compare {name}").check()
    page.get_by_role("link", name="compare 2 runs").click()
    page.wait_for_selector("[data-chart=curves] path.curve")
    assert all(url.startswith(dashboard) for url in visit.requests)


def test_the_report_of_the_dashboard_follows_the_run(dashboard, visit, tmp_path):
    page = visit(dashboard)
    page.get_by_role("link", name="going").click()
    page.wait_for_selector("[data-chart=tree] path.node")
    page.evaluate("window.untouched = true")
    page.locator("#fitness [data-key=record]").uncheck()
    chart(page, "tree").focus()
    page.keyboard.press("Home")
    tip = page.locator("#tooltip").inner_text()
    before = path_of(page, "fitness", "crowd")

    go_on(RunDirectory(tmp_path / "runs" / "going"), 3)
    page.wait_for_function("() => document.querySelector('.tiles').innerText.includes('16,000')")
    page.wait_for_function(
        "old => document.querySelector('[data-chart=fitness] .crowd').getAttribute('d') !== old",
        arg=before,
    )
    assert page.evaluate("window.untouched")  # not loaded again
    assert chart(page, "fitness").locator(".record").count() == 0
    assert page.locator("#tooltip").inner_text() == tip
    assert chart(page, "tree").evaluate("one => one === document.activeElement")

    drawn = page.evaluate("document.querySelector('[data-chart=fitness]').firstChild.id = 'same'")
    page.wait_for_timeout(500)  # several questions later nothing was drawn again
    assert page.locator(f"#{drawn}").count() == 1
    directory = RunDirectory(tmp_path / "runs" / "going")
    directory.write_summary(json.loads((tmp_path / "runs/family/summary.json").read_text()))
    page.wait_for_selector(".state.finished")
    assert "450.0" in page.locator("#score").inner_text()


def test_all_agents_can_be_reached(visit, address):
    """Every evaluation of every agent has a point that the keys come to."""
    page = visit(address)
    seen = set()
    chart(page, "tree").focus()
    page.keyboard.press("Home")
    for _ in range(5):
        for key in ("ArrowUp", "ArrowDown"):
            page.keyboard.press(key)
            seen.add(page.locator("#tooltip b").inner_text())
        page.keyboard.press("ArrowRight")
    assert {int(text.split()[1]) for text in seen} == set(FAMILY)
    assert len(seen) == 10


def names(page):
    return page.locator("tr[data-run] td.main a").all_inner_texts()


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_runs_are_sorted_filtered_and_tagged(dashboard, visit, tmp_path, width, scheme):
    expect = pytest.importorskip("playwright.sync_api").expect
    page = visit(dashboard, width, scheme)
    if width > 760:
        page.locator("th").get_by_text("run", exact=True).click()
    else:
        page.get_by_label("sort by").select_option("run, rising")
    assert names(page) == ["family", "going", "nested/begun"]
    page.get_by_label("sort by").select_option("training steps, falling", force=True)
    assert names(page) == ["going", "family", "nested/begun"]
    page.get_by_label("only this state").select_option("stopped")
    assert names(page) == ["going", "nested/begun"]
    page.get_by_label("only this state").select_option("all states")

    page.get_by_label("tags and note of going").click()
    page.get_by_label("tags, with commas between them").fill("baseline, <b>lr</b>")
    page.get_by_label("note", exact=True).fill("too slow")
    page.get_by_text("save").click()
    expect(page.locator("tr[data-run=going] .tag")).to_have_count(2)
    assert read_notes(tmp_path / "runs" / "going") == (["baseline", "<b>lr</b>"], "too slow")
    expect(page.get_by_label("only this tag")).to_be_visible()  # once newer data has come
    page.get_by_label("only this tag").select_option("baseline")
    assert names(page) == ["going"]
    page.get_by_label("only this tag").select_option("all tags")
    page.get_by_label("filter").fill("slow stopped")
    assert names(page) == ["going"]
    page.get_by_label("filter").fill("")
    page.get_by_text("tick all shown").click()
    assert "compare 3 runs" in page.locator("a.button").inner_text()
    assert fits(page)


def test_a_run_is_stopped_by_a_second_click(dashboard, visit, tmp_path):
    expect = pytest.importorskip("playwright.sync_api").expect
    directory = RunDirectory(tmp_path / "runs" / "going")
    page = visit(dashboard)
    assert page.get_by_label("stop going").count() == 0
    with directory.locked():
        button = page.get_by_label("stop going")
        button.click()
        assert not directory.asked_to_stop
        button.click()
        expect(page.get_by_text("stops after this generation")).to_be_visible()
        assert directory.asked_to_stop


def test_hundreds_of_runs(visit, tmp_path, chromium):
    """All of them are found by filters; a hundred are drawn at first."""
    for number in range(230):
        make_run(tmp_path, f"run-{number}", score=float(number))
    with serving.Dashboard(tmp_path, port=0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            page = visit(server.address)
            assert len(names(page)) == 100
            page.locator("th").get_by_text("score", exact=True).click()
            assert names(page)[:2] == ["run-229", "run-228"]
            page.get_by_text("show all 230").click()
            assert len(names(page)) == 230
            page.get_by_label("filter").fill("run-7")
            assert len(names(page)) == 11
        finally:
            server.shutdown()
            thread.join()
