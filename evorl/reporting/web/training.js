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
    ["speed", "training steps per second", new Chart("speed", "Training steps per second", 200, (frame) => drawSpeed(frame, get()))],
  ];
  const shares = el("div");
  const node = card("training", "Exploration, loss and speed", "Thick: the line of the best agent; thin: all agents. Speed includes evaluations.",
    el("div", { class: "multiples" }, parts.map(([, title, chart]) => el("div", {}, el("h3", {}, title), chart.host))), shares);
  return { node, update: () => shares.replaceChildren(...timeShares(get())) };
}

function drawSpeed(frame, run) {
  if (!run.count) return frame.empty("nothing measured yet");
  const y = makeScale("linear", 0, Math.max(...run.rows.steps_per_second), frame.bottom, frame.top, 0);
  frame.yAxis(y, "", brief, 4);
  const x = frame.timeAxis(run);
  const points = run.rows.steps_per_second.map((rate, row) => ({ x: x(row), y: y(rate), key: String(row), row, rate }));
  frame.path("plain", polyline(points));
  if (points.length < 200) frame.path("plain-dots", dotsPath(points, 2.4));
  return { points: () => points, tip: ({ row, rate }) => ({ title: `generation ${run.rows.generation[row]}`, pairs: [["steps per second", count(rate)], ["time", duration(run.rows.seconds[row])]] }) };
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
