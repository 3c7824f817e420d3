// Parallel coordinates: every evaluation of every agent as a line through all that it trained with.
const BRUSH = 6; // pixels that a drag must cover, or it clears the brush
const brushes = new Map(); // of each axis, by its name: [low, high] in its own numbers

// The axes: {name, kind, value(agent, k)} of what is not the same for all, fitness last.
function parallelAxes(run) {
  const first = run.agents[0], found = [{ name: "generation", kind: "linear", whole: true, value: (agent, k) => run.rows.generation[agent.start + k] }];
  for (const [name, kind] of Object.entries(run.hyperparameters)) found.push({ name, kind, value: (agent, k) => { const own = agent.hyperparameters[name]; return Array.isArray(own) ? own[k] : own; } });
  for (const name of Object.keys(first?.sizes ?? {})) {
    if (run.agents.some((agent) => agent.sizes[name] !== first.sizes[name])) found.push({ name, kind: "linear", whole: true, value: (agent) => agent.sizes[name] });
  }
  return [...found, { name: "fitness", kind: "linear", value: (agent, k) => agent.fitness[k] }];
}

// Evaluations that have all values: {agent, k, values}, the worst first, so that the best lie on top.
function strandsOf(run) {
  if (run.strands) return run.strands;
  const axes = parallelAxes(run);
  const strands = run.agents.flatMap((agent) => agent.fitness.map((_, k) => ({ agent, k, row: agent.start + k, values: axes.map((axis) => axis.value(agent, k)) })))
    .filter((strand) => strand.values.every((value) => value !== null && value !== undefined));
  strands.sort((a, b) => a.values[axes.length - 1] - b.values[axes.length - 1]);
  run.strands = { axes, strands };
  return run.strands;
}

function isBrushed(axes, strand) {
  return axes.every(({ name }, i) => !brushes.has(name) || (strand.values[i] >= brushes.get(name)[0] && strand.values[i] <= brushes.get(name)[1]));
}

function parallelSection(get) {
  const chart = new Chart("parallel", "Hyperparameters and fitness", (width) => (width < 640 ? 40 + 58 * strandsOf(get()).axes.length : 380), (frame) => drawParallel(frame, get()));
  const said = el("p", { class: "note", role: "status" }), legend = el("div");
  const clear = el("button", { type: "button", click: () => { brushes.clear(); redraw(); update(); } }, "show all");
  const best = el("button", { type: "button", click: () => { brushBest(get()); redraw(); update(); } }, "only the best quarter");
  listenToBrushes(chart, () => { redraw(); update(); });

  function update() {
    const { axes, strands } = strandsOf(get());
    const kept = strands.filter((strand) => isBrushed(axes, strand)), on = axes.filter(({ name }) => brushes.has(name));
    const span = extent(strands.map((strand) => strand.values[axes.length - 1]), "low");
    legend.replaceChildren(...(span ? [ramp(span[0], span[1], "fitness")] : []));
    clear.disabled = !on.length;
    best.disabled = strands.length < 4;
    const mean = (list) => figure(list.reduce((sum, strand) => sum + strand.values[axes.length - 1], 0) / list.length);
    said.textContent = !on.length ? "Drag along an axis to see only those evaluations that lie within; click on it to see all again."
      : `${count(kept.length)} of ${count(strands.length)} evaluations, of ${count(new Set(kept.map(({ agent }) => agent.id)).size)} agents${kept.length ? `; their mean fitness ${mean(kept)}, of all ${mean(strands)}` : ""}. Chosen: ${on.map(({ name }) => `${name} ${precise(brushes.get(name)[0])} to ${precise(brushes.get(name)[1])}`).join(", ")}.`;
  }

  const node = card("parallel", "Hyperparameters and fitness", "A line is an evaluation of an agent, through what it trained with in that generation; all agents of all generations. Later generations are better because they have trained for longer: choose a part of the generations to compare like with like.", el("div", { class: "checks" }, legend, best, clear), chart.host, said);
  return { node, update };
}

function brushBest(run) {
  const { axes, strands } = strandsOf(run), last = axes.length - 1;
  brushes.clear();
  if (strands.length) brushes.set("fitness", [strands[Math.floor(0.75 * strands.length)].values[last], strands[strands.length - 1].values[last]]);
}

// Axes stand side by side; where there is no room for that they lie below each other.
function drawParallel(frame, run) {
  const { axes, strands } = strandsOf(run), lying = frame.width < 640, last = axes.length - 1;
  if (!strands.length) return frame.empty("nothing measured yet");
  Object.assign(frame, lying ? { left: 8, right: frame.width - 8, top: 30, bottom: frame.height - 26 } : { left: 40, right: frame.width - 44, top: 26, bottom: frame.height - 12 });
  const places = axes.map((_, i) => (lying ? frame.top + 14 + (i * (frame.bottom - frame.top - 14)) / last : frame.left + (i * (frame.right - frame.left)) / last));
  const scales = axes.map((axis, i) => {
    const [low, high] = extent(strands.map((strand) => strand.values[i]), i === last ? "low" : null);
    return makeScale(axis.kind, low, high, ...(lying ? [frame.left, frame.right] : [frame.bottom, frame.top]), 0.02);
  });
  const ends = lying ? [frame.left - 4, frame.right + 4] : [frame.top - 4, frame.bottom + 4];
  const at = (strand) => strand.values.map((value, i) => {
    const along = Math.max(ends[0], Math.min(ends[1], scales[i](value)));
    return lying ? { x: along, y: places[i] } : { x: places[i], y: along };
  });
  const on = strands.filter((strand) => isBrushed(axes, strand)), off = on.length < strands.length ? strands.filter((strand) => !isBrushed(axes, strand)) : [];
  frame.path("strand off", off.map((strand) => polyline(at(strand))).join(""));
  const span = [scales[last].low, scales[last].high], shades = new Map();
  for (const strand of on) {
    const number = shadeOf(strand.values[last], span);
    if (!shades.has(number)) shades.set(number, []);
    shades.get(number).push(strand);
  }
  const opacity = Math.max(0.12, Math.min(0.85, 60 / Math.sqrt(1 + on.length) / 8));
  for (const [number, own] of [...shades].sort((a, b) => a[0] - b[0])) frame.path("strand", own.map((strand) => polyline(at(strand))).join(""), { stroke: shade(number), "stroke-opacity": opacity });
  axes.forEach((axis, i) => drawParallelAxis(frame, axis, scales[i], places[i], lying));
  const pointed = on.length * axes.length > 20000 ? [last] : axes.map((_, i) => i); // of too many only the fitness
  const points = () => on.flatMap((strand) => { const each = at(strand); return pointed.map((i) => ({ ...each[i], strand, agent: strand.agent, row: strand.row, key: `${strand.agent.id}@${strand.row}@${i}` })); });
  const tip = (point) => about(run, point, axes.map(({ name }, i) => [name, name === "fitness" ? figure(point.strand.values[i]) : precise(point.strand.values[i])]));
  return { points, tip, pick: ({ agent }) => follow(agent.id), axes, scales, places, lying };
}

function drawParallelAxis(frame, axis, scale, place, lying) {
  const [x1, x2, y1, y2] = lying ? [frame.left, frame.right, place, place] : [place, place, frame.top, frame.bottom];
  frame.add("line", { class: "rule", x1, x2, y1, y2 });
  if (lying) frame.text(frame.left, place - 6, axis.name, { class: "strong" });
  else frame.text(place, 12, axis.name.length > 16 ? `${axis.name.slice(0, 15)}…` : axis.name, { class: "strong", "text-anchor": "middle" });
  for (const tick of scale.ticks(lying ? 4 : 5).filter((value) => !axis.whole || Number.isInteger(value))) {
    const along = scale(tick);
    if (lying) frame.text(Math.max(frame.left + 10, Math.min(frame.right - 12, along)), place + 14, precise(tick), { "text-anchor": "middle" });
    else frame.text(place - 5, along + 4, precise(tick), { "text-anchor": "end" });
  }
  if (!brushes.has(axis.name)) return;
  const [from, to] = brushes.get(axis.name).map((value) => scale(value)).sort((a, b) => a - b);
  frame.add("rect", { class: "brush", ...(lying ? { x: from - 2, y: place - 7, width: to - from + 4, height: 14 } : { x: place - 7, y: from - 2, width: 14, height: to - from + 4 }), rx: 3 });
}

// A drag along an axis chooses a part of it; a click on one gives all of it back.
function listenToBrushes(chart, changed) {
  let drag = null;
  const where = (event) => {
    const box = chart.svg.getBoundingClientRect(), { lying } = chart.model;
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    return lying ? { along: x, across: y } : { along: y, across: x };
  };
  chart.svg.addEventListener("pointerdown", (event) => {
    if (!chart.model?.axes) return;
    const { along, across } = where(event), { places } = chart.model;
    const i = places.reduce((best, place, k) => (Math.abs(place - across) < Math.abs(places[best] - across) ? k : best), 0);
    if (Math.abs(places[i] - across) > 22) return;
    drag = { i, from: along };
    chart.svg.setPointerCapture(event.pointerId);
  });
  const end = (event) => {
    if (!drag) return;
    const { along } = where(event), { i, from } = drag, { name } = chart.model.axes[i], scale = chart.model.scales[i];
    drag = null;
    if (Math.abs(along - from) < BRUSH) brushes.delete(name);
    else brushes.set(name, [from, along].map((pixel) => scale.invert(pixel)).sort((a, b) => a - b));
    changed();
  };
  chart.svg.addEventListener("pointerup", end);
  chart.svg.addEventListener("pointercancel", () => { drag = null; });
}
