// A chart: an SVG as wide as its place, with a cursor that mouse, touch and arrow keys move.
const REACH = 48; // pixels from a point at which the pointer still finds it

class Chart {
  // build(frame) draws, and answers {points() → [{x, y, key, …}], start, tip(point), pick(point)}.
  constructor(key, label, height, build) {
    this.svg = svg("svg", { class: "chart", "data-chart": key, tabindex: 0, role: "application", "aria-roledescription": "chart", "aria-label": `${label}. Arrow keys move through its points.` });
    this.host = el("div", { class: "host" }, this.svg);
    this.height = height;
    this.build = build;
    this.key = null; // of the point under the cursor
    this.listen();
    charts.add(this);
    new ResizeObserver(() => { if (this.width && this.host.clientWidth !== this.width) this.draw(); }).observe(this.host);
  }

  draw() {
    this.width = this.host.clientWidth;
    if (!this.width) return;
    const height = typeof this.height === "function" ? this.height(this.width) : this.height;
    this.svg.replaceChildren();
    this.frame = new Frame(this.svg, this.width, height);
    this.model = this.build(this.frame);
    this.found = this.sorted = null;
    this.cursor = svg("circle", { class: "ring", r: 6, visibility: "hidden" });
    this.svg.append(this.cursor);
    if (this.key !== null) {
      const same = this.points.find((point) => point.key === this.key);
      if (same) this.show(same);
      else this.hide();
    }
  }

  // Worked out only when somebody points at the chart.
  get points() {
    this.found ??= this.model?.points() ?? [];
    return this.found;
  }

  get columns() {
    this.sorted ??= columnsOf(this.points);
    return this.sorted;
  }

  // The tooltip goes along with a chart that the keys are in, as when focus scrolls it into view.
  scrolled() {
    if (this.key === null) return;
    if (document.activeElement === this.svg) this.show(this.current);
    else this.hide();
  }

  show(point) {
    this.key = point.key;
    this.current = point;
    this.cursor.setAttribute("cx", point.x);
    this.cursor.setAttribute("cy", point.y);
    this.cursor.setAttribute("visibility", "visible");
    const box = this.svg.getBoundingClientRect();
    showTooltip(this.model.tip(point), box.left + point.x, box.top + point.y);
  }

  hide() {
    if (this.key === null) return;
    this.key = null;
    this.cursor.setAttribute("visibility", "hidden");
    hideTooltip();
  }

  listen() {
    const at = (event) => {
      const box = this.svg.getBoundingClientRect();
      const point = nearest(this.columns, event.clientX - box.left, event.clientY - box.top);
      if (point) this.show(point);
      else this.hide();
      return point;
    };
    this.svg.addEventListener("pointermove", at);
    this.svg.addEventListener("pointerdown", at);
    this.svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") this.hide(); });
    this.svg.addEventListener("dblclick", (event) => this.pick(at(event)));
    this.svg.addEventListener("blur", () => this.hide());
    this.svg.addEventListener("focus", () => {
      if (this.svg.matches(":focus-visible") && this.points.length) this.show(this.model.start ?? this.points[this.points.length - 1]);
    });
    this.svg.addEventListener("keydown", (event) => this.keydown(event));
    document.addEventListener("pointerdown", (event) => { if (!this.svg.contains(event.target)) this.hide(); });
    window.addEventListener("scroll", () => this.scrolled(), { passive: true, capture: true });
  }

  keydown(event) {
    if (!this.points.length) return;
    const current = this.points.find((point) => point.key === this.key);
    if (event.key === "Escape") this.hide();
    else if (event.key === "Enter" && current) this.pick(current);
    else {
      const next = step(this.columns, current ?? this.points[0], event.key);
      if (!next) return;
      this.show(next);
    }
    event.preventDefault();
  }

  pick(point) {
    if (point && this.model.pick) this.model.pick(point);
  }
}

// The plotting area inside its margins, and what is drawn around it.
class Frame {
  constructor(node, width, height) {
    Object.assign(this, { node, width, height, left: 46, right: width - 10, top: 18, bottom: height - 34 });
    node.setAttribute("viewBox", `0 0 ${width} ${height}`);
    node.setAttribute("height", height);
  }

  add(tag, attributes, ...children) {
    const node = svg(tag, attributes, ...children);
    this.node.append(node);
    return node;
  }

  path(name, d, more = {}) {
    return d ? this.add("path", { class: name, d, ...more }) : null;
  }

  text(x, y, text, more = {}) {
    return this.add("text", { x, y, ...more }, text);
  }

  yAxis(scale, title, show = brief, wanted = 5, whole = false) {
    const ticks = scale.ticks(wanted).filter((tick) => !whole || Number.isInteger(tick));
    this.left = Math.max(30, 12 + 6.6 * Math.max(0, ...ticks.map((tick) => show(tick).length)));
    for (const tick of ticks) {
      const y = scale(tick);
      this.add("line", { class: "grid", x1: this.left, x2: this.right, y1: y, y2: y });
      this.text(this.left - 8, y + 4, show(tick), { "text-anchor": "end" });
    }
    if (title) this.text(0, 9, title);
  }

  xAxis(scale, title, show = brief, wanted = Math.max(2, Math.floor((this.right - this.left) / 90)), whole = false) {
    this.add("line", { class: "axis", x1: this.left, x2: this.right, y1: this.bottom, y2: this.bottom });
    for (const tick of scale.ticks(wanted)) {
      if (whole && !Number.isInteger(tick)) continue;
      this.text(Math.min(scale(tick), this.right - 4), this.bottom + 16, show(tick), { "text-anchor": "middle" });
    }
    if (title) this.text(this.right, this.height - 3, title, { "text-anchor": "end" });
  }

  timeAxis(run) {
    const x = timeScale(run, this.left + 4, this.right - 6), whole = view.axis === "generation";
    this.xAxis(x, AXES[view.axis], view.axis === "seconds" ? duration : brief, undefined, whole);
    return (row) => x(run.rows[view.axis][row]);
  }

  // Marks that may lie outside are cut at the plotting area.
  clip() {
    const id = `clip-${Frame.clips = (Frame.clips ?? 0) + 1}`;
    this.add("clipPath", { id }, svg("rect", { x: this.left - 6, y: this.top - 6, width: this.right - this.left + 12, height: this.bottom - this.top + 12 }));
    return { "clip-path": `url(#${id})` };
  }

  empty(text) {
    this.text(this.width / 2, this.height / 2, text, { "text-anchor": "middle" });
    return { points: () => [] };
  }
}

function columnsOf(points) {
  const found = new Map();
  for (const point of points) {
    const x = Math.round(point.x * 2);
    if (!found.has(x)) found.set(x, []);
    found.get(x).push(point);
  }
  return [...found.entries()].sort((a, b) => a[0] - b[0]).map(([x, column]) => ({ x: x / 2, points: column.sort((a, b) => a.y - b.y) }));
}

function nearest(columns, x, y) {
  let best = null, least = REACH ** 2;
  for (const column of columns) {
    if ((column.x - x) ** 2 > least) continue;
    for (const point of column.points) {
      const distance = (point.x - x) ** 2 + (point.y - y) ** 2;
      if (distance < least || (distance === least && point.first)) [best, least] = [point, distance];
    }
  }
  return best;
}

function step(columns, point, key) {
  const at = columns.findIndex((column) => column.points.includes(point));
  const column = columns[at].points, place = column.indexOf(point);
  if (key === "ArrowUp") return column[Math.max(0, place - 1)];
  if (key === "ArrowDown") return column[Math.min(column.length - 1, place + 1)];
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: columns.length - 1 }[key];
  if (to === undefined) return null;
  const other = columns[Math.max(0, Math.min(columns.length - 1, to))].points;
  return other.reduce((a, b) => (Math.abs(b.y - point.y) < Math.abs(a.y - point.y) ? b : a));
}
