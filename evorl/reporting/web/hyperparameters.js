// The schedule of each hyperparameter along the line, among the whole population.
function hyperparametersSection(get) {
  const grid = el("div", { class: "multiples" });
  const checks = new Checks("hyperparameters shown", (key) => !view.hidden.hyperparameter.has(key), (key, on) => {
    if (on) view.hidden.hyperparameter.delete(key);
    else view.hidden.hyperparameter.add(key);
    update();
    redraw();
  });
  const note = el("p", { class: "note" });
  const made = new Map();

  function panel(name) {
    const chart = new Chart(`hyperparameter-${name}`, `Hyperparameter ${name}`, 190, (frame) => {
      const run = get(), series = (agent) => agent.hyperparameters[name];
      const model = drawSteps(frame, run, run.hyperparameters[name], series);
      model.tip = (point) => about(run, point, [[name, precise(point.value)], ["fitness", figure(valueAt(point.agent, point.row, (agent) => agent.fitness))]]);
      return model;
    });
    return el("div", {}, el("h3", {}, name), chart.host);
  }

  function update() {
    const run = get(), names = Object.keys(run.hyperparameters);
    checks.show(names.map((key) => ({ key, label: key })));
    const shown = names.filter((name) => !view.hidden.hyperparameter.has(name));
    for (const name of shown) if (!made.has(name)) made.set(name, panel(name));
    const nodes = shown.map((name) => made.get(name));
    if (nodes.length !== grid.children.length || nodes.some((child, i) => grid.children[i] !== child)) grid.replaceChildren(...nodes);
    const fixed = Object.entries(run.fixed).map(([name, value]) => `${name} ${precise(value)}`);
    note.textContent = names.length ? (fixed.length ? `The same for all agents, at all times: ${fixed.join(", ")}.` : "") : (run.count ? "No hyperparameter differs between agents or changes over time." : "No generation has ended yet.");
  }

  const node = card("hyperparameters", "Hyperparameter schedules", "Thick: what the line of the best agent trained with, ancestor after ancestor. Thin: all agents.", checks.node, grid, note);
  return { node, update };
}

// Values that hold from birth on: level lines, and steps along the line of descent.
function drawSteps(frame, run, kind, series) {
  const values = run.agents.flatMap((agent) => (agent.start === null ? [] : listOf(agent, series))).filter((v) => v !== null);
  const around = extent(values);
  if (!around) return frame.empty("nothing measured yet");
  const y = makeScale(kind, around[0], around[1], frame.bottom, frame.top, 0.06);
  frame.yAxis(y, "", precise, 4);
  const x = frame.timeAxis(run);
  const points = () => pointsOf(run, x, y, series);
  if (view.show.has("crowd")) {
    frame.path(run.dense ? "crowd dense" : "crowd", crowdPath(run, x, y, series));
    if (!run.dense) frame.path("crowd-dots", dotsPath(points(), 1.5));
  }
  const through = lineOf(run).map(({ agent, row }) => ({ agent, row, first: true, key: `${agent.id}@${row}`, x: x(row), value: listOf(agent, series)[row - agent.start] }))
    .filter((p) => p.value !== null && p.value !== undefined).map((p) => ({ ...p, y: y(p.value) }));
  const steps = through.map((p, i) => (i ? `${p.agent === through[i - 1].agent ? "" : `H${((p.x + through[i - 1].x) / 2).toFixed(1)}`}V${p.y.toFixed(1)}H${p.x.toFixed(1)}` : `M${p.x.toFixed(1)} ${p.y.toFixed(1)}`)).join("");
  frame.path("line-halo", steps);
  frame.path("line", steps);
  if (through.length === 1) frame.path("line-dots", dotsPath(through, 3));
  return { points: () => (view.show.has("crowd") ? [...points(), ...through] : through), start: through[through.length - 1], pick: ({ agent }) => follow(agent.id) };
}
