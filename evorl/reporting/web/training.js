// Exploration, loss, speed, and where the time went.
function trainingSection(get) {
  const lines = (key, title, options) => new Chart(key, title, 200, (frame) => {
    const run = get(), model = drawLines(frame, run, options);
    model.tip = (point) => about(run, point, [[title, figure(point.value)], ["fitness", figure(valueAt(point.agent, point.row, (agent) => agent.fitness))]]);
    return model;
  });
  const parts = [
    ["exploration", "exploration (ε)", lines("exploration", "exploration", { series: (agent) => agent.exploration })],
    ["loss", "loss", lines("loss", "loss", { kind: "log", series: (agent) => agent.loss })],
    ["speed", "training steps per second", new Chart("speed", "Training steps per second", 200, (frame) => {
      const values = get().rows.steps_per_second;
      return drawSeries(frame, get(), [{ values, label: "steps per second", line: "plain" }]);
    })],
  ];
  const shares = el("div");
  const node = card("training", "Exploration, loss and speed", "Thick: the line of the best agent; thin: all agents. Speed includes evaluations.",
    el("div", { class: "multiples" }, parts.map(([, title, chart]) => el("div", {}, el("h3", {}, title), chart.host))), shares);
  return { node, update: () => shares.replaceChildren(...timeShares(get())) };
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
