// Several runs side by side.
const CURVES = { best: "best so far, on further episodes", top: "best of the generation", mean: "mean of the population" };

function runColour(runs, run) {
  return KINDS[runs.indexOf(run) % KINDS.length];
}

class Comparison {
  constructor(data) {
    this.data = data;
    const shown = () => this.data.runs.filter((run) => !view.hidden.run.has(run.name));
    this.checks = new Checks("runs shown", ...toggled(view.hidden.run));
    const scores = new Chart("scores", "Held-out scores", () => 40 + 34 * Math.max(1, shown().length), (frame) => drawScores(frame, this.data.runs, shown()));
    const curves = new Chart("curves", "Fitness of the runs", (width) => (width < 600 ? 300 : 360), (frame) => drawCurves(frame, this.data.runs, shown()));
    const pick = el("select", { "aria-label": "curve", change: () => { view.curve = pick.value; redraw(); } }, Object.entries(CURVES).map(([value, text]) => el("option", { value }, text)));
    this.bands = data.bands.length ? new Bands(data) : null;
    this.groups = el("div");
    this.legend = el("div", { class: "legend", "aria-hidden": "true" });
    this.node = el("div", {}, this.bands?.node ?? null,
      card("scores", "Scores", "Mean over held-out episodes of each run's best agent, with its 95 % interval over episodes.", this.checks.node, scores.host),
      card("curves", "Fitness", null, el("label", { class: "pick" }, "curve ", pick), curves.host, this.legend), this.groups);
    this.update(data);
  }

  update(data) {
    this.data = data;
    this.bands?.update(data);
    this.checks.show(data.runs.map((run) => ({ key: run.name, label: run.name, swatch: swatch(runColour(data.runs, run)) })));
    this.legend.replaceChildren(...data.runs.map((run, i) => el("span", {}, svg("svg", { class: "dash", viewBox: "0 0 26 10" }, svg("path", { class: "curve", d: "M0 5H26", stroke: runColour(data.runs, run), "stroke-dasharray": DASHES[i % DASHES.length] || null })), run.name)));
    this.groups.replaceChildren(...groupTables(data.comparison));
  }
}

function drawScores(frame, runs, shown) {
  const scored = shown.filter((run) => run.headline.score);
  if (!scored.length) return frame.empty("none of these runs is finished");
  const [low, high] = extent(scored.flatMap((run) => run.headline.score.mean));
  frame.left = 4;
  const x = makeScale("linear", low, high, frame.left + 8, frame.right - 8, 0.05);
  for (const tick of x.ticks(6)) frame.add("line", { class: "grid", x1: x(tick), x2: x(tick), y1: 4, y2: frame.bottom });
  frame.xAxis(x, "held-out score");
  const points = shown.map((run, i) => {
    const top = 4 + i * 34, y = top + 24, colour = runColour(runs, run), score = run.headline.score;
    frame.text(frame.left, top + 12, run.name, { class: "strong" });
    frame.text(frame.right, top + 12, score ? estimate(score.mean) : run.state, { "text-anchor": "end" });
    if (!score) return null;
    const [value, from, to] = score.mean;
    if (from !== null) frame.add("line", { class: "whisker", x1: x(from), x2: x(to), y1: y, y2: y, stroke: colour });
    frame.add("circle", { cx: x(value), cy: y, r: 5, fill: colour });
    return { x: x(value), y, key: run.name, run };
  }).filter(Boolean);
  return { points: () => points, tip: ({ run }) => ({ title: run.name, pairs: [["environment", run.env], ["mean", estimate(run.headline.score.mean)], ["IQM", estimate(run.headline.score.iqm)], ["episodes", count(run.headline.score.episodes)]] }) };
}

function curveOf(run) {
  if (view.curve === "best") return run.rows.best;
  return run.rows.ids.map((ids, row) => {
    const values = ids.map((id) => valueAt(run.byId.get(id), row, (agent) => agent.fitness)).filter((v) => v !== null);
    if (!values.length) return null;
    return view.curve === "top" ? Math.max(...values) : values.reduce((a, b) => a + b, 0) / values.length;
  });
}

function drawCurves(frame, runs, shown) {
  const drawn = shown.filter((run) => run.count).map((run) => ({ run, values: curveOf(run) }));
  const around = extent(drawn.flatMap(({ values }) => values));
  if (!around) return frame.empty("nothing measured yet");
  const y = makeScale("linear", around[0], around[1], frame.bottom, frame.top, 0.04);
  frame.yAxis(y, "fitness", brief, 6);
  const last = (run) => run.rows[view.axis][run.count - 1];
  const x = makeScale("linear", 0, Math.max(...drawn.map(({ run }) => last(run)), 1e-9), frame.left + 4, frame.right - 6), cut = frame.clip();
  frame.xAxis(x, AXES[view.axis], view.axis === "seconds" ? duration : brief);
  const points = [];
  for (const { run, values } of drawn) {
    const own = values.map((value, row) => ({ x: x(run.rows[view.axis][row]), value, row, run, key: `${run.name}@${row}` })).filter((p) => p.value !== null).map((p) => ({ ...p, y: y.clamp(p.value) }));
    const i = runs.indexOf(run);
    frame.path("curve", polyline(own), { stroke: runColour(runs, run), "stroke-dasharray": DASHES[i % DASHES.length] || null, ...cut });
    points.push(...own.filter((p) => p.y > frame.top - 8 && p.y < frame.bottom + 8));
  }
  return { points: () => points, tip: ({ run, row, value }) => ({ title: run.name, pairs: [[CURVES[view.curve], figure(value)], ["generation", String(run.rows.generation[row])], ["steps", count(run.rows.env_steps[row])], ["time", duration(run.rows.seconds[row])]] }) };
}

function groupTables(comparison) {
  if (!comparison) return [];
  const cell = (title, text, right = true) => el("td", { class: right ? "right" : "main", "data-title": title }, text);
  const table = (head, rows) => el("table", { class: "stack" }, el("thead", {}, el("tr", {}, head.map(([text, right]) => el("th", { class: right ? "right" : null, scope: "col" }, text)))), el("tbody", {}, rows));
  const groups = table([["group"], ["environment", true], ["runs", true], ["IQM", true], ["mean", true], ["steps a run", true]], comparison.groups.map((group) => el("tr", {},
    cell("", group.label, false), cell("environment", group.env), cell("runs", String(group.runs)), cell("IQM", estimate(group.iqm)), cell("mean", estimate(group.mean)), cell("steps", count(group.steps)))));
  const pairs = comparison.improvements.map((one) => el("tr", {}, cell("", `${one.x} > ${one.y}`, false), cell("environment", one.env), cell("probability", even(one.probability)[0]), cell("95 % interval", range(one.probability))));
  return [card("groups", "Finished runs by configuration", "Runs that differ in name and seed only are one group. Intervals are over runs, and too narrow for fewer than about ten of them.",
    groups, ...(pairs.length ? [el("h3", {}, "How probably a run of one beats one of the other"), table([["X > Y"], ["environment", true], ["probability", true], ["95 % interval", true]], pairs)] : []),
    ...comparison.warnings.map((text) => el("p", { class: "warning" }, text)))];
}
