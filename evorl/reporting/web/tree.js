// The family tree: a column a generation, a row a place in the population.
const SHAPES = {
  circle: (x, y, r) => dot(x, y, r * 0.86),
  diamond: (x, y, r) => `M${x} ${y - r * 1.2}L${x + r * 1.2} ${y}L${x} ${y + r * 1.2}L${x - r * 1.2} ${y}Z`,
  square: (x, y, r) => `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}Z`,
  triangle: (x, y, r) => `M${x} ${y - r * 1.15}L${x + r * 1.15} ${y + r * 0.9}L${x - r * 1.15} ${y + r * 0.9}Z`,
  hexagon: (x, y, r) => `M${x - r * 1.1} ${y}l${r * 0.55} ${-r}h${r * 1.1}l${r * 0.55} ${r}l${-r * 0.55} ${r}h${-r * 1.1}Z`,
};
const KIND_SHAPES = { initial: "circle", none: "circle", hyperparameters: "diamond", parameters: "triangle", activation: "hexagon" };

function shapeOf(mutation) {
  return KIND_SHAPES[mutation] ?? "square"; // layers, units and channels, added or removed
}

function treeSection(get) {
  const scroll = el("div", { class: "scroll" });
  const legend = el("div");
  const checks = new Checks("mutations shown", ...toggled(view.hidden.kind));
  const places = (run) => run.agents.reduce((most, agent) => Math.max(most, agent.place + 1), 1);
  const rowHeight = (run) => Math.max(3, Math.min(32, 560 / places(run)));
  const chart = new Chart("tree", "Family tree", () => 62 + rowHeight(get()) * places(get()), (frame) => drawTree(frame, get(), places(get())));
  scroll.append(chart.host);
  const node = card("tree", "Family tree", "A column is a generation, a row a place in the population. A curve leads from a parent, as it was copied, to its child, whose shape tells the mutation; colour is fitness. Thick: the line of descent of the best agent.", checks.node, scroll, legend);
  return {
    node,
    update() {
      const run = get();
      chart.host.style.minWidth = `${Math.min(20000, run.count * 3 + 50)}px`;
      const kinds = [...new Set(run.agents.map((agent) => agent.mutation))];
      checks.show(kinds.map((kind) => ({ key: kind, label: kind === "initial" ? "from the start" : kind, swatch: swatch("var(--muted)", SHAPES[shapeOf(kind)](7, 7, 5)) })));
      legend.replaceChildren(...(run.clipped ? [ramp(run.clipped[0], run.clipped[1], "fitness")] : []));
    },
  };
}

function drawTree(frame, run, places) {
  if (!run.count) return frame.empty("no generation has ended yet");
  frame.left = 8 + 7.5 * String(places - 1).length + 12;
  const wide = (frame.right - frame.left) / run.count, high = (frame.bottom - frame.top) / places;
  const radius = Math.max(1, Math.min(8, wide * 0.36, high * 0.34));
  const x = (row) => frame.left + wide * (row + 0.5), y = (place) => frame.top + high * (place + 0.5);
  frame.text(0, 9, "place");
  const everyPlace = Math.ceil(16 / high);
  for (let place = 0; place < places; place += everyPlace) frame.text(frame.left - 8, y(place) + 4, String(place), { "text-anchor": "end" });
  const every = Math.ceil((String(run.rows.generation[run.count - 1]).length * 8 + 10) / wide);
  for (let row = 0; row < run.count; row += every) frame.text(x(row), frame.bottom + 16, String(run.rows.generation[row]), { "text-anchor": "middle" });
  frame.text(frame.right, frame.height - 3, "generation", { "text-anchor": "end" });

  // Where a mark would be no more than a speck, cells fill the plane, and only the line is drawn in.
  const dense = radius < 2.2, thin = dense ? " thin" : "";
  const mark = dense ? (cx, cy) => `M${(cx - wide / 2).toFixed(1)} ${(cy - high / 2).toFixed(1)}h${wide.toFixed(2)}v${high.toFixed(2)}h${-wide.toFixed(2)}Z`
    : (cx, cy, first, agent) => SHAPES[first ? shapeOf(agent.mutation) : "circle"](cx, cy, first ? radius : radius * 0.85);
  const stays = [], edges = [], dead = [], shades = new Map();
  for (const agent of run.agents) {
    if (agent.start === null) continue;
    const dim = view.hidden.kind.has(agent.mutation), end = agent.start + agent.fitness.length - 1;
    if (end > agent.start) stays.push(`M${x(agent.start).toFixed(1)} ${y(agent.place).toFixed(1)}H${x(end).toFixed(1)}`);
    const parent = agent.parent === null ? null : run.byId.get(agent.parent), from = run.rowOf.get(agent.left);
    if (parent && from !== undefined && !dim) edges.push(edge(x(from), y(parent.place), x(agent.start), y(agent.place)));
    agent.fitness.forEach((value, k) => {
      const cx = x(agent.start + k), cy = y(agent.place);
      if (value === null) { dead.push(`M${cx - 3} ${cy - 3}l6 6m0 -6l-6 6`); return; }
      const name = dim ? "dim" : shadeOf(value, run.clipped);
      if (!shades.has(name)) shades.set(name, []);
      shades.get(name).push(mark(cx, cy, k === 0, agent));
    });
  }
  const nodes = () => { for (const [name, marks] of shades) frame.path(`node${dense ? " cell" : ""}${name === "dim" ? " dim" : ""}`, marks.join(""), name === "dim" ? {} : { fill: shade(name) }); };
  if (dense) nodes();
  else {
    frame.path("stay", stays.join(""));
    frame.path("edge", edges.join(""));
  }
  const line = lineOf(run).map(({ row, agent }) => ({ row, agent, x: x(row), y: y(agent.place) }));
  frame.path(`line-halo${thin}`, lineagePath(line));
  frame.path(`line${thin}`, lineagePath(line));
  if (!dense) nodes();
  frame.path("dead", dead.join(""));
  const last = line[line.length - 1];
  if (last) frame.add("circle", { class: "ring", cx: last.x, cy: last.y, r: radius + 3.5 });
  const pointOf = (agent, row) => ({ x: x(row), y: y(agent.place), key: `${agent.id}@${row}`, agent, row, value: valueAt(agent, row, (one) => one.fitness) });
  return {
    points: () => run.agents.flatMap((agent) => (agent.start === null ? [] : agent.fitness.map((_, k) => pointOf(agent, agent.start + k)))),
    start: last && pointOf(last.agent, last.row), tip: (point) => treeTip(run, point), pick: ({ agent }) => follow(agent.id),
  };
}

function edge(x1, y1, x2, y2) {
  const middle = (x1 + x2) / 2;
  return `M${x1.toFixed(1)} ${y1.toFixed(1)}C${middle.toFixed(1)} ${y1.toFixed(1)} ${middle.toFixed(1)} ${y2.toFixed(1)} ${x2.toFixed(1)} ${y2.toFixed(1)}`;
}

function lineagePath(line) {
  return line.map((p, i) => (i ? edge(line[i - 1].x, line[i - 1].y, p.x, p.y).replace(/^M[^C]*/, "") : `M${p.x.toFixed(1)} ${p.y.toFixed(1)}`)).join("");
}

function treeTip(run, { agent, row, value }) {
  const error = valueAt(agent, row, (one) => one.error);
  const first = row === agent.start;
  return {
    title: `agent ${agent.id} · generation ${run.rows.generation[row]}`,
    pairs: [
      ["fitness", value === null ? "dead" : figure(value, error)],
      ...(agent.parent === null ? [["born", "at the start"]] : [["parent", `agent ${agent.parent}, generation ${agent.left}`], ["mutation", agent.mutation]]),
      ["network", agent.architecture],
    ],
    text: agent.parent === null ? "" : (first ? "" : "at birth: ") + agent.change,
  };
}
