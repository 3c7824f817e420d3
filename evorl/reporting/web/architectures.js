// Which networks the population had: their share of it, generation by generation.
const NAMED = 8;

function architecturesSection(get) {
  const checks = new Checks("architectures shown", ...toggled(view.hidden.architecture));
  const path = el("ol", { class: "path", "aria-label": "the best line's networks" });
  const chart = new Chart("architectures", "Architectures over time", 260, (frame) => drawShares(frame, get()));
  const node = card("architectures", "Architectures", "How many agents have which network. Dotted: the network of the best agent's line.", checks.node, chart.host, path);
  return {
    node,
    update() {
      const run = get();
      checks.show(architecturesOf(run).map((name, i) => ({ key: name, label: name, swatch: swatch(KINDS[i]) })));
      const steps = lineOf(run).filter(({ agent }, i, line) => !i || agent.architecture !== line[i - 1].agent.architecture);
      path.replaceChildren(...steps.map(({ agent, row }) => el("li", {}, el("b", {}, agent.architecture), ` from generation ${run.rows.generation[row]}`)));
    },
  };
}

function architecturesOf(run) {
  const counts = new Map();
  for (const agent of run.agents) if (agent.start !== null) counts.set(agent.architecture, (counts.get(agent.architecture) ?? 0) + agent.fitness.length);
  const names = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a) || (a < b ? -1 : 1));
  return names.length > NAMED + 1 ? [...names.slice(0, NAMED), "others"] : names;
}

function drawShares(frame, run) {
  if (!run.count) return frame.empty("no generation has ended yet");
  const names = architecturesOf(run), known = new Set(names), shown = names.filter((name) => !view.hidden.architecture.has(name));
  const label = (agent) => (known.has(agent.architecture) ? agent.architecture : "others");
  const counts = run.rows.ids.map((ids) => {
    const found = new Map();
    for (const id of ids) { const name = label(run.byId.get(id)); found.set(name, (found.get(name) ?? 0) + 1); }
    return found;
  });
  const most = Math.max(1, ...counts.map((each) => shown.reduce((sum, name) => sum + (each.get(name) ?? 0), 0)));
  const y = makeScale("linear", 0, most, frame.bottom, frame.top);
  frame.yAxis(y, "agents", (tick) => (Number.isInteger(tick) ? String(tick) : ""), Math.min(5, most));
  const x = frame.timeAxis(run);
  const edges = Array.from({ length: run.count + 1 }, (_, i) => (i === 0 ? frame.left : i === run.count ? frame.right : (x(i - 1) + x(i)) / 2));
  const base = run.rows.ids.map(() => 0), points = [], middles = new Map();
  shown.forEach((name) => {
    const upper = [], lower = [];
    run.rows.ids.forEach((_, row) => {
      const size = counts[row].get(name) ?? 0, bottom = y(base[row]), top = y(base[row] + size);
      upper.push(`${edges[row].toFixed(1)} ${top.toFixed(1)}L${edges[row + 1].toFixed(1)} ${top.toFixed(1)}`);
      lower.push(`${edges[row + 1].toFixed(1)} ${bottom.toFixed(1)}L${edges[row].toFixed(1)} ${bottom.toFixed(1)}`);
      if (size) {
        points.push({ x: (edges[row] + edges[row + 1]) / 2, y: (top + bottom) / 2, key: `${name}@${row}`, name, row, size });
        middles.set(`${name}@${row}`, points[points.length - 1]);
      }
      base[row] += size;
    });
    frame.path("layer", `M${upper.join("L")}L${lower.reverse().join("L")}Z`, { fill: KINDS[names.indexOf(name)] });
  });
  const through = lineOf(run).map(({ row, agent }) => middles.get(`${label(agent)}@${row}`)).filter(Boolean);
  frame.path("through", polyline(through));
  return { points: () => points, tip: ({ name, row, size }) => ({ title: name, pairs: [["generation", String(run.rows.generation[row])], ["agents", `${size} of ${run.rows.ids[row].length}`]] }) };
}
