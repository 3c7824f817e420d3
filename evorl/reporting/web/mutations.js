// Which mutations helped: a strip of children for each kind, and their mean.
const STRIP = 50;
const WORDS = { none: "copy, no mutation", parameters: "noise on the weights", "": "the parents themselves" };

function mutationsSection(get) {
  const chart = new Chart("mutations", "Change of fitness by mutation", () => 46 + STRIP * Math.max(1, strips(get()).length), (frame) => drawStrips(frame, get()));
  const node = card("mutations", "Which mutations helped", "A dot is a child: its fitness at its first evaluation, less its parent's when it was copied. Bar and band: mean and standard error. Below, for comparison, what the parents themselves changed by in the same time.", chart.host);
  return { node, update() {} };
}

function wordsOf(kind) {
  return WORDS[kind] ?? kind;
}

function strips(run) {
  const { kinds, parents } = run.effects;
  return [...kinds, ...(parents ? [{ ...parents, kind: "", ids: [] }] : [])];
}

function drawStrips(frame, run) {
  const found = strips(run);
  if (!found.length) return frame.empty(run.count ? "no child was evaluated yet" : "no generation has ended yet");
  const around = extent(found.flatMap((one) => one.changes), "both");
  const means = found.flatMap((one) => [one.mean - (one.error ?? 0), one.mean + (one.error ?? 0)]);
  const [low, high] = extent([...around, ...means, 0]);
  Object.assign(frame, { left: 4, right: frame.width - 6 });
  const x = makeScale("linear", low, high, frame.left, frame.right, 0.03);
  for (const tick of x.ticks(Math.max(3, Math.floor(frame.width / 110)))) frame.add("line", { class: tick === 0 ? "zero" : "grid", x1: x(tick), x2: x(tick), y1: 4, y2: frame.bottom });
  frame.xAxis(x, "change of fitness");
  const points = [];
  found.forEach((one, i) => {
    const top = 4 + i * STRIP, middle = top + 33, reference = one.kind === "" ? " reference" : "";
    frame.text(frame.left, top + 12, wordsOf(one.kind), { class: "strong" });
    frame.text(frame.right, top + 12, `${signed(one.mean, one.error)} · ${one.helped} of ${one.changes.length} better`, { "text-anchor": "end" });
    if (one.error !== null) frame.add("rect", { class: `spread${reference}`, x: x(one.mean - one.error), y: middle - 11, width: Math.max(1, x(one.mean + one.error) - x(one.mean - one.error)), height: 22, rx: 4 });
    const marks = one.changes.map((change, k) => ({ x: Math.max(frame.left + 3, Math.min(frame.right - 3, x(change))), y: middle + (((k * 0.618034) % 1) - 0.5) * 14, change, id: one.ids[k], key: `${one.kind}/${k}`, one }));
    frame.path("dots", dotsPath(marks, marks.length > 400 ? 1.8 : 3));
    frame.add("line", { class: `mean${reference}`, x1: x(one.mean), x2: x(one.mean), y1: middle - 11, y2: middle + 11 });
    points.push(...marks);
  });
  return { points: () => points, tip: (point) => stripTip(run, point), pick: ({ id }) => { if (id !== undefined) follow(id); } };
}

function stripTip(run, { id, change, one }) {
  const agent = run.byId.get(id);
  if (!agent) return { title: "a parent, in the same time", pairs: [["change", signed(change)]] };
  return { title: `agent ${id}, from agent ${agent.parent}`, pairs: [["mutation", wordsOf(one.kind)], ["change of fitness", signed(change)], ["born", `generation ${agent.born}`]], text: agent.change };
}
