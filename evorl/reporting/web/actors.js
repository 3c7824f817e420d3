// Those who play while others learn: how far they are behind, and what became of their messages.
const REFUSED = {
  lag: "too late: more versions behind than actors.max_lag; its steps count all the same",
  generation: "under way when a generation ended: it belongs to agents that may be gone",
  replayed: "it came twice, or from a process that was replaced",
  slot: "it said that it was another actor's",
  fields: "fields are missing, unknown, or of another kind",
  type: "a tensor of another type",
  shape: "a tensor of another shape",
  range: "a number out of its range, or not finite",
  padding: "a gradient that moves what is no weight",
  malformed: "bytes that are no message",
  misdirected: "it said that it was another process's",
  unknown: "of a process that had not said hello",
  strangers: "a process without the key or token of this run",
  denied: "a process that was not let in, such as one of another version",
};
// key, title, [what of metrics.jsonl, its name, its line], how numbers are shown, and what of each
// actor the axis has room for at least
const ACTOR_CHARTS = [
  ["lag", "lag, in versions of the weights", [["lag", "mean", "plain"], ["max_lag", "most", "record"]], figure, 0],
  ["queue", "queue, in messages", [["queue", "waiting", "plain"]], figure, 2],
  ["frames", "frames per second", [["frames_per_second", "frames per second", "plain"]], count, 0],
  ["alive", "actors alive", [["alive", "alive", "plain"]], count, 1],
];

function actorsSection(get) {
  const charts = ACTOR_CHARTS.map(([key, title, lines, show, each]) => {
    const chart = new Chart(`actors-${key}`, `Actors: ${title}`, 180, (frame) => {
      const run = get(), { figures, wanted } = run.actors;
      const series = lines.map(([name, label, line]) => ({ values: figures[name], label, line }));
      return drawSeries(frame, run, series, { show, most: each * wanted, whole: each > 0 });
    });
    const legend = lines.length > 1 ? el("div", { class: "legend" }, lines.map(([, label, line]) => el("span", {}, svg("svg", { class: "dash", viewBox: "0 0 26 10", "aria-hidden": "true" }, svg("path", { class: line, d: "M0 5H26" })), label))) : null;
    return el("div", {}, el("h3", {}, title), chart.host, legend);
  });
  const told = el("div");
  const node = card("actors", "Actors", "They play while the learner learns. Lag: how many versions of the weights lie between those that an actor played with and those that its message meets. Queue: messages that still wait when the learner takes one; with none it waits for actors, with two of each actor they wait for it. Frames: environment steps of all actors, without the time of evaluations.",
    el("div", { class: "multiples two" }, charts), told);
  return { node, update: () => told.replaceChildren(...messages(get())) };
}

// What became of all messages, and why some were refused.
function messages(run) {
  const { figures, refused } = run.actors, sum = (name) => figures[name].reduce((all, value) => all + (value ?? 0), 0);
  const reasons = Object.entries(refused).sort((a, b) => b[1] - a[1]);
  const gone = sum("gone"), deaths = gone ? `; ${count(gone)} ${gone === 1 ? "actor" : "actors"} gone, and ${count(sum("lost"))} messages with them` : "";
  const line = el("p", { class: "note" }, `${count(sum("messages"))} messages were taken${reasons.length ? "" : ", and none was refused"}${deaths}.`);
  if (!reasons.length) return [line];
  const cell = (title, name, text) => el("td", { class: name, "data-title": title }, text);
  const rows = reasons.map(([reason, number]) => el("tr", {}, cell("refused", "main", reason), cell("messages", "right", count(number)), cell("", null, REFUSED[reason] ?? "")));
  const head = el("tr", {}, el("th", { scope: "col" }, "refused"), el("th", { scope: "col", class: "right" }, "messages"), el("th", { scope: "col" }, "why"));
  return [line, el("table", { class: "stack" }, el("thead", {}, head), el("tbody", {}, rows))];
}
