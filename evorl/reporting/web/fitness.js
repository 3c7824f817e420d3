// Fitness of every agent, and the line of the chosen one through all of its ancestors.
function fitnessSection(get) {
  const chart = new Chart("fitness", "Fitness over time", (width) => (width < 600 ? 300 : 400), (frame) => {
    const run = get();
    const model = drawLines(frame, run, {
      series: (agent) => agent.fitness, title: "fitness", clip: view.clip ? "low" : null, include: around(run),
      before: (x, y, through, cut) => {
        const errors = through.map((p) => ({ ...p, error: valueAt(p.agent, p.row, (agent) => agent.error) })).filter((p) => p.error !== null);
        if (view.show.has("error") && errors.length > 1) {
          const upper = errors.map((p) => ({ x: p.x, y: y.clamp(p.value + p.error) })), lower = errors.map((p) => ({ x: p.x, y: y.clamp(p.value - p.error) }));
          frame.path("band", `${polyline(upper)}${polyline(lower.reverse()).replace("M", "L")}Z`, cut);
        }
        if (view.show.has("record")) {
          const record = run.rows.best.map((value, row) => (value === null ? null : { x: x(row), y: y.clamp(value) })).filter(Boolean);
          frame.path("record", record.map((p, i) => (i ? `H${p.x.toFixed(1)}V${p.y.toFixed(1)}` : `M${p.x.toFixed(1)} ${p.y.toFixed(1)}`)).join(""), cut);
        }
      },
    });
    model.tip = (point) => {
      const error = valueAt(point.agent, point.row, (agent) => agent.error);
      return about(run, point, [["fitness", figure(point.value, error)]]);
    };
    return model;
  });
  // What has to fit beside the agents: the record, and the errors of the line.
  function around(run) {
    const record = view.show.has("record") ? extent(run.rows.best)?.[1] ?? null : null;
    const errors = view.show.has("error") ? lineOf(run).flatMap(({ agent, row }) => {
      const value = valueAt(agent, row, (one) => one.fitness), error = valueAt(agent, row, (one) => one.error);
      return value === null || error === null ? [] : [value - error, value + error];
    }) : [];
    return [record, ...errors];
  }

  const checks = new Checks("shown in the chart", (key) => (key === "clip" ? view.clip : view.show.has(key)), (key, on) => {
    if (key === "clip") view.clip = on;
    else if (on) view.show.add(key);
    else view.show.delete(key);
    redraw();
  });
  const node = card("fitness", "Fitness", "Thin: every agent, from its birth until its place went to another's child. Thick: the line of descent of the best agent, with the standard error of each evaluation. Double-click an agent, or press Enter on it, to follow its line instead.", checks.node, chart.host);
  return {
    node,
    update() {
      const run = get(), all = extent(run.fitness), clipped = run.clipped;
      const outliers = all && clipped[0] > all[0];
      checks.show([
        { key: "crowd", label: "all agents", swatch: swatch("var(--crowd)", "M0 6H14V8H0Z") },
        { key: "record", label: "best so far, on further episodes", swatch: swatch("var(--record)", "M0 6H4V8H0ZM6 6H10V8H6ZM12 6H14V8H12Z") },
        { key: "error", label: "standard error", swatch: swatch("var(--line-soft)") },
        ...(outliers ? [{ key: "clip", label: "zoom past outliers" }] : []),
      ]);
    },
  };
}
