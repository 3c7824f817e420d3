// What the reader has chosen to see; it stays when new data comes in.
const view = {
  axis: "env_steps", // of time: env_steps, generation or seconds
  line: "best", // the agent whose line of descent is drawn through: best, or an id
  curve: "best", // of a comparison: best, mean or top
  response: "fitness", // of which importance is shown: fitness or gain
  clip: true,
  show: new Set(["crowd", "record", "error"]),
  hidden: { kind: new Set(), hyperparameter: new Set(), architecture: new Set(), run: new Set() },
};
const AXES = { env_steps: "training steps of all agents", generation: "generation", seconds: "time" };

// All charts on the page are drawn again: at once those that are seen, then one after the other.
const charts = new Set();
let waiting = [];
function redraw() {
  for (const chart of charts) if (!chart.host.isConnected) charts.delete(chart);
  const seen = (chart) => {
    const box = chart.host.getBoundingClientRect();
    return box.bottom > 0 && box.top < window.innerHeight;
  };
  const idle = !waiting.length;
  waiting = [...charts].filter((chart) => !seen(chart));
  for (const chart of charts) if (!waiting.includes(chart)) chart.draw();
  if (idle) setTimeout(drawNext);
}

function drawNext() {
  const chart = waiting.shift();
  if (chart?.host.isConnected) chart.draw();
  if (waiting.length) setTimeout(drawNext);
}

function toggled(set) {
  return [(key) => !set.has(key), (key, on) => { if (on) set.delete(key); else set.add(key); redraw(); }];
}

// A run with what is looked up often.
function prepare(run) {
  run.byId = new Map(run.agents.map((agent) => [agent.id, agent]));
  run.count = run.rows.generation.length;
  run.rowOf = new Map(run.rows.generation.map((generation, row) => [generation, row]));
  run.fitness = run.agents.flatMap((agent) => agent.fitness.filter((value) => value !== null));
  run.clipped = extent(run.fitness, "low"); // the best are never left out
  run.dense = run.fitness.length > 3000; // too many for a dot each
  return run;
}

function valueAt(agent, row, series) {
  return series(agent)[row - agent.start] ?? null;
}

// The line of descent of the chosen agent, from its first ancestor on: {row, agent} a generation.
function lineOf(run) {
  let agent, until;
  if (view.line === "best" || !run.byId.has(Number(view.line))) {
    if (!run.best) return [];
    agent = run.byId.get(run.best.id);
    until = run.best.generation;
  } else {
    agent = run.byId.get(Number(view.line));
    until = Infinity;
  }
  const found = [];
  while (agent) {
    for (let k = agent.fitness.length - 1; agent.start !== null && k >= 0; k -= 1) {
      const row = agent.start + k;
      if (run.rows.generation[row] <= until) found.push({ row, agent });
    }
    until = agent.left;
    agent = agent.parent === null ? null : run.byId.get(agent.parent);
  }
  return found.reverse();
}

function timeScale(run, from, to) {
  const values = run.rows[view.axis];
  const low = view.axis === "generation" ? values[0] ?? 0 : 0;
  return makeScale("linear", low, Math.max(values[values.length - 1] ?? 1, low + (view.axis === "generation" ? 0 : 1e-9)), from, to);
}
