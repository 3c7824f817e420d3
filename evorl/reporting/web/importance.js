// Which hyperparameter mattered: how much of the differences between agents goes with each.
const RESPONSES = { fitness: "fitness", gain: "what was gained in the generation" };

function importanceSection(get) {
  const pick = el("select", { "aria-label": "importance for", change: () => { view.response = pick.value; update(); redraw(); } }, Object.entries(RESPONSES).map(([value, text]) => el("option", { value }, text)));
  const chart = new Chart("importance", "Importance of hyperparameters", () => 44 + 30 * Object.keys(get().importance[view.response]?.features ?? {}).length, (frame) => drawImportance(frame, get().importance[view.response]));
  const said = el("p", { class: "note" }), place = el("div"); // for the chart, once there is something to say
  const why = el("details", {}, el("summary", {}, "How this is measured, and what it cannot tell"),
    el("p", { class: "note" }, "A random forest predicts an agent's place among the agents of its generation (by its fitness, or by what it gained since the evaluation before) from what it trained with. It is asked of agents that it has not seen; a hyperparameter's importance is half of what its error grows by when the values are shuffled among these, as a share of the variance. The interval is that of 40 forests, each on another draw of the agents (2.5 % to 97.5 %)."),
    el("p", { class: "note" }, "Children inherit weights and most values from their parents: agents are no independent trials. What a good line happened to carry looks important, intervals are too narrow, and values that the run never tried are unknown. To be sure of one, train runs that differ in nothing else, with several seeds, and compare them."));
  const node = card("importance", "Which hyperparameter mattered", "How much of the differences between agents of the same generation goes with each. Children inherit weights and values from their parents: this is what went along with success, and need not be its cause.", el("div", { class: "checks" }, el("label", { class: "pick" }, "for ", pick)), place, said, why);

  function update() {
    const found = get().importance[view.response];
    why.hidden = !found;
    place.replaceChildren(...(found ? [chart.host] : []));
    if (found) charts.add(chart);
    said.textContent = found ? `${worthOf(found)} ${count(found.samples)} evaluations of ${count(found.agents)} agents.`
      : "There is nothing to say yet: it takes ten agents with different values, and thirty evaluations.";
  }
  return { node, update };
}

// What the forest is worth in words, before anybody reads its bars.
function worthOf({ explained: [value, low, high] }) {
  const span = `${percent(low)} to ${percent(high)}`;
  if (low <= 0) return `Nothing is certain: for agents that it has not seen, the forest explains no more of the differences than chance might (${span}).`;
  return `For agents that it has not seen, the forest explains ${percent(value)} of the differences (${span}). A pale bar, whose interval reaches zero, may be chance.`;
}

function percent(value) {
  const whole = Math.round(100 * value);
  return `${whole < 0 ? MINUS : ""}${Math.abs(whole)} %`;
}

function drawImportance(frame, found) {
  const rows = Object.entries(found.features), names = 8 + 6.6 * Math.max(...rows.map(([name]) => name.length));
  Object.assign(frame, { left: Math.min(names, 0.45 * frame.width), right: frame.width - 14, top: 4 });
  const most = Math.max(0.1, ...rows.map(([, values]) => values[2])), least = Math.min(0, ...rows.map(([, values]) => values[1]));
  const x = makeScale("linear", Math.max(least, -0.25 * most), most, frame.left, frame.right, 0);
  for (const tick of x.ticks(4)) frame.add("line", { class: tick === 0 ? "zero" : "grid", x1: x(tick), x2: x(tick), y1: 4, y2: frame.bottom });
  frame.xAxis(x, "share of the differences", percent, Math.max(2, Math.floor((frame.right - frame.left) / 90)));
  const points = rows.map(([name, [value, low, high]], i) => {
    const y = 19 + 30 * i, clear = low > 0;
    frame.text(frame.left - 8, y + 4, name, { class: clear ? "strong" : null, "text-anchor": "end" });
    frame.add("rect", { class: clear ? "share" : "share weak", x: Math.min(x(0), x(value)), y: y - 8, width: Math.max(1, Math.abs(x(value) - x(0))), height: 16, rx: 3 });
    frame.add("line", { class: "whisker", stroke: "var(--ink)", x1: Math.max(frame.left, x(low)), x2: x(high), y1: y, y2: y });
    return { x: x(Math.max(0, value)), y, key: name, name, values: [value, low, high] };
  });
  return { points: () => points, start: points[0], tip: ({ name, values }) => ({ title: name, pairs: [["importance", percent(values[0])], ["interval", `${percent(values[1])} to ${percent(values[2])}`]], text: values[1] > 0 ? null : "This may be chance." }) };
}
