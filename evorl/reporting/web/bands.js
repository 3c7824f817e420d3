// Runs of one configuration together: the middle of their best agents so far, with a band over runs.
class Bands {
  constructor(data) {
    this.data = data;
    const charts = this.envs(data).map((env) => new Chart(`bands-${env}`, `Seeds together, ${env}`, (width) => (width < 600 ? 300 : 360), (frame) => drawBands(frame, this.data.bands, env)));
    this.legend = el("div", { class: "legend", "aria-hidden": "true" });
    this.node = card("bands", "Seeds together", "Interquartile mean over the runs of a configuration of their best agents so far (by further episodes, a little too high), and its 95 % interval over runs, too narrow for fewer than about ten of them.", ...charts.map((chart) => chart.host), this.legend);
    this.update(data);
  }

  envs(data) {
    return [...new Set(data.bands.map((band) => band.env))];
  }

  update(data) {
    this.data = data;
    const several = this.envs(data).length > 1;
    this.legend.replaceChildren(...data.bands.map((band) => el("span", {}, svg("svg", { class: "dash", viewBox: "0 0 26 10" }, svg("path", { class: "curve", d: "M0 5H26", stroke: bandColour(data.bands, band) })), `${several ? `${band.env}: ` : ""}${band.label} (${band.runs} runs)`)));
  }
}

function bandColour(bands, band) {
  return KINDS[bands.indexOf(band) % KINDS.length];
}

function drawBands(frame, bands, env) {
  const own = bands.filter((band) => band.env === env);
  const [low, high] = extent(own.flatMap((band) => [...band.low, ...band.high, ...band.iqm]));
  const y = makeScale("linear", low, high, frame.bottom, frame.top, 0.04);
  frame.yAxis(y, own.length === bands.length ? "best so far" : `${env}: best so far`, brief, 6);
  const x = makeScale("linear", 0, Math.max(...own.flatMap((band) => band.steps)), frame.left + 4, frame.right - 6);
  frame.xAxis(x, AXES.env_steps, brief);
  const points = [];
  for (const band of own) {
    const colour = bandColour(bands, band);
    const at = (values) => values.map((value, i) => ({ x: x(band.steps[i]), y: y.clamp(value) }));
    const [middle, upper, lower] = [at(band.iqm), at(band.high), at(band.low)];
    if (middle.length === 1) { // neither a line nor an area
      frame.path("whisker", polyline([upper[0], lower[0]]), { stroke: colour });
      frame.add("circle", { cx: middle[0].x, cy: middle[0].y, r: 5, fill: colour });
    }
    frame.path("over-runs", `${polyline(upper)}${polyline(lower.reverse()).replace("M", "L")}Z`, { fill: colour });
    frame.path("curve", polyline(middle), { stroke: colour });
    points.push(...middle.map((point, i) => ({ ...point, key: `${bands.indexOf(band)}@${i}`, band, i })));
  }
  return { points: () => points, tip: ({ band, i }) => ({ title: band.label, pairs: [["best so far, IQM", estimate([band.iqm[i], band.low[i], band.high[i]])], ["runs", count(band.runs)], ["steps", count(band.steps[i])]] }) };
}
