// Returns, lengths, losses and what was measured while agents trained, exploration, speed, and where the time went.
const MEASURES = { q_value: "mean Q value", value: "mean value", value_loss: "error of the value, squared", entropy: "entropy of the policy", temperature: "temperature", gradient_norm: "gradient norm" };
const LOGS = new Set(["loss", "value_loss", "temperature"]);
const CURVES_OF_TRAINING = { return: "return of training episodes", length: "length of training episodes", loss: "loss", updates_per_step: "updates per step" };

function titleOf(name) {
  const [what, network] = name.split("/");
  return `${MEASURES[what] ?? what}${network ? `, ${network}` : ""}`;
}

// The same run with a row for every point within its generations; null if it has none.
function finer(run) {
  if (run.finer !== undefined) return run.finer;
  const { row, share } = run.points, agents = run.agents.filter((agent) => agent.training);
  const between = (values, first) => row.map((at, i) => { const before = at ? values[at - 1] : first; return before + share[i] * (values[at] - before); });
  run.finer = !row.length ? null : prepare({
    ...run, strands: undefined,
    rows: { ...run.rows, env_steps: between(run.rows.env_steps, 0), seconds: between(run.rows.seconds, 0), generation: between(run.rows.generation, (run.rows.generation[0] ?? 0) - 1) },
    agents: agents.map((agent) => ({ ...agent, start: agent.training.first, fitness: agent.training.return })),
  });
  return run.finer;
}

function trainingSection(get) {
  const panel = (key, title, chart) => [key, el("div", {}, el("h3", {}, title), chart.host)];
  const lines = (key, title, options) => panel(key, title, new Chart(key, title, 200, (frame) => {
    const run = get(), model = drawLines(frame, run, options);
    model.tip = (point) => about(run, point, [[title, figure(point.value)], ["fitness", figure(valueAt(point.agent, point.row, (agent) => agent.fitness))]]);
    return model;
  }));
  const byStep = (name) => panel(`training-${name}`, CURVES_OF_TRAINING[name], new Chart(`training-${name}`, CURVES_OF_TRAINING[name], 200, (frame) => {
    const run = finer(get()), model = drawLines(frame, run, { kind: LOGS.has(name) ? "log" : "linear", series: (agent) => agent.training[name], clip: name === "return" ? "low" : null });
    model.tip = ({ agent, row, value }) => ({ title: `agent ${agent.id} · generation ${Math.ceil(run.rows.generation[row] - 1e-9)}`, pairs: [[CURVES_OF_TRAINING[name], figure(value)], ["steps", count(run.rows.env_steps[row])]] });
    return model;
  }));
  const made = new Map([
    lines("exploration", "exploration (ε)", { series: (agent) => agent.exploration }),
    lines("loss", "loss", { kind: "log", series: (agent) => agent.loss }),
    panel("speed", "training steps per second", new Chart("speed", "Training steps per second", 200, (frame) => {
      const values = get().rows.steps_per_second;
      return drawSeries(frame, get(), [{ values, label: "steps per second", line: "plain" }]);
    })),
  ]);

  // What there is to show of this run: with points within generations, or by generation alone.
  function wanted(run) {
    const own = finer(run), names = own ? Object.keys(CURVES_OF_TRAINING).filter((name) => own.agents.some((agent) => agent.training[name].some((value) => value !== null))) : [];
    for (const name of names) if (!made.has(`training-${name}`)) made.set(...byStep(name));
    const measured = Object.keys(run.agents[0]?.measured ?? {});
    for (const name of measured) if (!made.has(name)) made.set(...lines(name, titleOf(name), { kind: name.startsWith("gradient_norm") || LOGS.has(name) ? "log" : "linear", series: (agent) => agent.measured[name] }));
    return [...names.map((name) => `training-${name}`), ...measured, "exploration", ...(names.includes("loss") ? [] : ["loss"]), "speed"];
  }

  const grid = el("div", { class: "multiples" }), shares = el("div");
  const node = card("training", "Training", "Thick: the line of the best agent; thin: all agents. Returns, lengths and losses are means over a fifth of a generation. Gradient norms (before clipping), values and entropies are measured once a generation, on one batch. Speed includes evaluations.", grid, shares);
  function update() {
    const nodes = wanted(get()).map((key) => made.get(key));
    if (nodes.length !== grid.children.length || nodes.some((child, i) => grid.children[i] !== child)) grid.replaceChildren(...nodes);
    shares.replaceChildren(...timeShares(get()));
  }
  return { node, update };
}

// One value a generation, or several, from zero up; where a value is not known the line has a gap.
function drawSeries(frame, run, series, { show = count, axis = brief, most = 0, whole = false } = {}) {
  const around = extent(series.flatMap(({ values }) => values));
  if (!around) return frame.empty("nothing measured yet");
  const y = makeScale("linear", 0, Math.max(around[1], most) * 1.04 || 1, frame.bottom, frame.top, 0);
  frame.yAxis(y, "", axis, 4, whole);
  const x = frame.timeAxis(run), found = [];
  for (const { values, label, line } of series) {
    const points = values.map((value, row) => (value === null ? null : { x: x(row), y: y(value), key: `${label}@${row}`, row, value, label }));
    const known = points.filter(Boolean);
    frame.path(line, points.map((p, i) => (p ? `${i && points[i - 1] ? "L" : "M"}${p.x.toFixed(1)} ${p.y.toFixed(1)}` : "")).join(""));
    if (points.length < 200 && line === "plain") frame.path("plain-dots", dotsPath(known, 2.4));
    found.push(...known);
  }
  const tip = ({ row }) => ({
    title: `generation ${run.rows.generation[row]}`,
    pairs: [...series.map(({ values, label }) => [label, show(values[row])]), ["time", duration(run.rows.seconds[row])]],
  });
  return { points: () => found, tip };
}

function timeShares(run) {
  const shares = Object.entries(run.headline.shares).filter(([, share]) => share > 0);
  if (!shares.length) return [];
  const bar = el("div", { class: "shares", role: "img", "aria-label": shares.map(([name, share]) => `${name} ${Math.round(100 * share)} %`).join(", ") });
  const legend = el("div", { class: "legend" });
  shares.forEach(([name, share], i) => {
    const part = el("div"), square = el("i");
    part.style.flex = `${share} 0 0`;
    part.style.background = square.style.background = KINDS[i % KINDS.length];
    bar.append(part);
    legend.append(el("span", {}, square, `${name} ${share < 0.005 ? "<1" : Math.round(100 * share)} %`));
  });
  return [el("h3", {}, "Where the time went"), bar, legend];
}
