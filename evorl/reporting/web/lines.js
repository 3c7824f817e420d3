// A measure of every agent over time: all of them faint, one line of descent drawn through.

// series(agent) is its list, or one number for all of its life.
function listOf(agent, series) {
  const found = series(agent);
  return Array.isArray(found) ? found : agent.fitness.map(() => found);
}

function crowdPath(run, x, y, series) {
  const parts = [];
  for (const agent of run.agents) {
    let open = false;
    listOf(agent, series).forEach((value, k) => {
      if (value === null || value === undefined) { open = false; return; }
      parts.push(`${open ? "L" : "M"}${x(agent.start + k).toFixed(1)} ${y.clamp(value).toFixed(1)}`);
      open = true;
    });
  }
  return parts.join("");
}

// Agents of a single evaluation have no line: every evaluation is a dot as well, if these are few.
function dotsPath(points, radius) {
  return points.map(({ x, y }) => dot(x, y, radius)).join("");
}

function dot(x, y, r) {
  return `M${(x - r).toFixed(1)} ${y.toFixed(1)}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`;
}

function polyline(points) {
  return points.map(({ x, y }, i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

function pointsOf(run, x, y, series) {
  const found = [];
  for (const agent of run.agents) {
    listOf(agent, series).forEach((value, k) => {
      if (value === null || value === undefined) return;
      const row = agent.start + k;
      found.push({ x: x(row), y: y.clamp(value), key: `${agent.id}@${row}`, agent, row, value });
    });
  }
  return found;
}

// {kind, series, title, show, clip, before(frame, x, y, line)} → the chart's model
function drawLines(frame, run, { kind = "linear", series, title, show = brief, clip = null, include = [], before }) {
  const values = run.agents.flatMap((agent) => listOf(agent, series)).filter((v) => v !== null && (kind !== "log" || v > 0));
  const line = lineOf(run);
  const own = line.map(({ agent, row }) => listOf(agent, series)[row - agent.start]);
  const around = extent(values, clip);
  if (!around) return frame.empty("nothing measured yet");
  const [low, high] = extent([...around, ...own.filter((v) => v !== null && (kind !== "log" || v > 0)), ...include.filter((v) => v !== null)]);
  const y = makeScale(kind, low, high, frame.bottom, frame.top, 0.04);
  frame.yAxis(y, title, show, Math.max(3, Math.floor((frame.bottom - frame.top) / 44)));
  const x = frame.timeAxis(run), cut = frame.clip();
  const usable = (agent) => (kind === "log" ? listOf(agent, series).map((v) => (v > 0 ? v : null)) : listOf(agent, series));
  const points = () => pointsOf(run, x, y, usable).filter((p) => p.y > frame.top - 8 && p.y < frame.bottom + 8);
  if (view.show.has("crowd")) {
    frame.path(run.dense ? "crowd dense" : "crowd", crowdPath(run, x, y, usable), cut);
    if (!run.dense) frame.path("crowd-dots", dotsPath(points(), run.count < 3 ? 3 : 1.6), cut);
  }
  const through = line.map(({ agent, row }) => ({ agent, row, x: x(row), value: usable(agent)[row - agent.start] }))
    .filter((p) => p.value !== null && p.value !== undefined).map((p) => ({ ...p, y: y.clamp(p.value), key: `${p.agent.id}@${p.row}`, first: true }));
  before?.(x, y, through, cut);
  frame.path("line-halo", polyline(through), cut);
  frame.path("line", polyline(through), cut);
  if (through.length < Math.min(80, frame.width / 12)) frame.path("line-dots", dotsPath(through, through.length < 30 ? 3.4 : 2.4), cut);
  const shown = () => (view.show.has("crowd") ? [...points(), ...through] : through);
  return { points: shown, start: through[through.length - 1], x, y, pick: ({ agent }) => follow(agent.id) };
}

function follow(id) {
  view.line = String(id);
  redraw();
  document.dispatchEvent(new Event("followed"));
}

function about(run, { agent, row }, pairs) {
  const rows = run.rows;
  return {
    title: `agent ${agent.id} · generation ${rows.generation[row]}`,
    pairs: [...pairs, ["born", agent.parent === null ? "at the start" : `generation ${agent.born}, from agent ${agent.parent}`], ["network", agent.architecture], ["steps", count(rows.env_steps[row])]],
  };
}
