// The list of all runs, from which reports open: sorted, filtered, with tags and notes.
const SHOWN = 100; // rows at first; with hundreds of runs more come when they are asked for
const COLUMNS = [ // title, class, what it is sorted by: numbers and texts, null last
  ["", "tick", null],
  ["run", null, (run) => run.name],
  ["environment", null, (run) => run.env],
  ["state", null, (run) => run.state],
  ["score", "right", (run) => run.score?.[0] ?? run.best],
  ["training steps", "right", (run) => (run.state === "damaged" ? null : run.env_steps)],
  ["last written", "right", (run) => run.changed],
];

class RunList {
  constructor(data) {
    this.chosen = new Set();
    this.rows = new Map();
    this.order = { column: 6, falling: true };
    this.most = SHOWN;
    const again = () => { this.most = SHOWN; this.show(); };
    this.search = el("input", { type: "search", placeholder: "name, tag, note, …", size: 22, "aria-label": "filter", input: again });
    this.filters = ["state", "env", "tag"].map((key) => [key, el("select", { "aria-label": `only this ${key}`, change: again })]);
    this.compare = el("a", { class: "button" });
    this.all = el("button", { type: "button", click: () => this.chooseAll() });
    this.body = el("tbody");
    this.heads = COLUMNS.map(([title, name, key], i) => el("th", { class: name, scope: "col" }, key ? el("button", { type: "button", class: "sort", click: () => this.sort(i) }, title) : null));
    this.table = el("table", { class: "stack" }, el("thead", {}, el("tr", {}, this.heads)), this.body);
    this.sorter = el("select", { "aria-label": "sort by", class: "narrow", change: () => { const [column, falling] = this.sorter.value.split(" "); this.order = { column: Number(column), falling: falling === "true" }; this.show(); } },
      COLUMNS.flatMap(([title, , key], i) => (key ? [[`${i} false`, `${title}, rising`], [`${i} true`, `${title}, falling`]] : [])).map(([value, text]) => el("option", { value }, text)));
    this.more = el("button", { type: "button", click: () => { this.most = Infinity; this.show(); } });
    this.empty = el("p", { class: "empty" });
    this.count = el("span", { class: "muted number", role: "status" });
    this.node = el("section", { class: "card" }, el("div", { class: "checks" }, this.search, this.filters.map(([, select]) => select), this.sorter, this.compare, this.all, this.count), this.table, this.more, this.empty);
    this.update(data);
  }

  update(data) {
    this.data = data;
    const options = { state: data.runs.map((run) => run.state), env: data.runs.map((run) => run.env), tag: data.runs.flatMap((run) => run.tags) };
    for (const [key, select] of this.filters) fillFilter(select, { state: "all states", env: "all environments", tag: "all tags" }[key], options[key]);
    this.show();
  }

  // Those that pass all filters, in order.
  matching() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean), [state, env, tag] = this.filters.map(([, select]) => select.value);
    const key = COLUMNS[this.order.column][2], sign = this.order.falling ? -1 : 1;
    return this.data.runs.filter((run) => {
      const text = `${run.name} ${run.env} ${run.state} ${run.tags.join(" ")} ${run.note}`.toLowerCase();
      return words.every((word) => text.includes(word)) && (!state || run.state === state) && (!env || run.env === env) && (!tag || run.tags.includes(tag));
    }).map((run) => ({ run, value: key(run) ?? null })).sort((a, b) => {
      if (a.value === null || b.value === null) return (a.value === null) - (b.value === null);
      return sign * (typeof a.value === "string" ? a.value.localeCompare(b.value, "en", { numeric: true }) : a.value - b.value);
    }).map(({ run }) => run);
  }

  sort(column) {
    const same = this.order.column === column;
    this.order = { column, falling: same ? !this.order.falling : column > 3 };
    this.show();
  }

  show() {
    const runs = this.matching(), rows = runs.slice(0, this.most).map((run) => this.rowOf(run)); // a row that says the same stays, with its focus
    if (rows.length !== this.body.children.length || rows.some((row, i) => row !== this.body.children[i])) this.body.replaceChildren(...rows);
    this.heads.forEach((head, i) => { if (i === this.order.column) head.setAttribute("aria-sort", this.order.falling ? "descending" : "ascending"); else head.removeAttribute("aria-sort"); });
    this.sorter.value = `${this.order.column} ${this.order.falling}`;
    this.table.hidden = !runs.length;
    this.empty.hidden = runs.length > 0;
    this.empty.textContent = this.data.runs.length ? "No run matches." : `There are no runs in ${this.data.folder} yet. They appear here as soon as one begins.`;
    this.more.hidden = runs.length <= rows.length;
    this.more.textContent = `show all ${count(runs.length)}`;
    this.count.textContent = runs.length < this.data.runs.length ? `${count(runs.length)} of ${count(this.data.runs.length)} runs` : "";
    this.link();
  }

  link() {
    const chosen = this.data.runs.filter((run) => this.chosen.has(run.name)).map((run) => run.name);
    this.compare.textContent = chosen.length < 2 ? "tick two runs to compare" : `compare ${chosen.length} runs`;
    this.compare.setAttribute("aria-disabled", String(chosen.length < 2));
    if (chosen.length < 2) this.compare.removeAttribute("href");
    else this.compare.setAttribute("href", reportAddress(chosen));
    this.all.textContent = chosen.length ? "untick all" : "tick all shown";
  }

  chooseAll() {
    if (this.data.runs.some((run) => this.chosen.has(run.name))) this.chosen.clear();
    else for (const run of this.matching().slice(0, this.most)) if (run.state !== "damaged") this.chosen.add(run.name);
    for (const box of this.body.querySelectorAll("td.tick input")) box.checked = this.chosen.has(box.dataset.run);
    this.link();
  }

  rowOf(run) {
    const text = JSON.stringify(run), known = this.rows.get(run.name);
    if (known?.text !== text && !known?.node.querySelector("form, .asking")) this.rows.set(run.name, { text, node: this.row(run) });
    return this.rows.get(run.name).node;
  }

  tick() {
    for (const cell of this.body.querySelectorAll("[data-changed]")) cell.textContent = age(Number(cell.dataset.changed));
  }

  row(run) {
    const box = el("input", { type: "checkbox", "data-run": run.name, "aria-label": `compare ${run.name}`, change: () => { if (box.checked) this.chosen.add(run.name); else this.chosen.delete(run.name); this.link(); } });
    box.checked = this.chosen.has(run.name);
    box.disabled = run.state === "damaged";
    const cell = (title, name, ...children) => el("td", { class: name, "data-title": title }, ...children);
    const name = run.state === "damaged" ? run.name : el("a", { href: reportAddress([run.name]) }, run.name);
    const score = run.score ? [even(run.score)[0], el("span", { class: "muted" }, ` (${range(run.score)})`)] : run.best === null ? ["—"] : [el("span", { class: "muted" }, "best so far "), figure(run.best)];
    const steps = cell("steps", "right", run.state === "damaged" ? "—" : brief(run.env_steps));
    if (run.state === "running" && run.share !== null) {
      const bar = el("div", { class: "progress" }, el("div"));
      bar.firstChild.style.width = `${Math.min(100, 100 * run.share)}%`;
      steps.append(bar);
    }
    return el("tr", { "data-run": run.name }, cell("", "tick", box), cell("", "main", name, notesOf(run)), cell("", "keep", run.env), cell("", "", stateOf(run), actorsBadge(run), stopButton(run)),
      cell("score", "right", ...score), steps, cell("last written", "right", el("span", { "data-changed": run.changed }, age(run.changed))));
  }
}

// What a filter offers: all of what there is; what was chosen stays chosen, even if it is gone for now.
function fillFilter(select, none, values) {
  const wanted = [...new Set([...values, select.value])].filter(Boolean).sort();
  const known = JSON.stringify(wanted), before = select.value;
  select.hidden = wanted.length < 2 && !before && none !== "all tags" || !wanted.length;
  if (select.dataset.known === known) return;
  select.dataset.known = known;
  select.replaceChildren(el("option", { value: "" }, none), ...wanted.map((value) => el("option", { value }, value)));
  select.value = before;
}

// The state, and of one that failed or is damaged the beginning of why; its report has all of it.
function stateOf({ state, problem }) {
  const text = problem ? `${state}: ${problem}` : state;
  return el("span", { class: `state ${state}`, title: problem }, text.length > 240 ? `${text.slice(0, 240)}…` : text);
}

// How many actors a run has that trains with some, and how many it is to have.
function actorsBadge({ state, alive, actors }) {
  if (state !== "running" || alive === null || !actors) return null;
  return el("span", { class: `badge ${alive < actors ? "less" : ""}` }, `${alive} of ${actors} actors`);
}

function reportAddress(names) {
  return `/report?${names.map((name) => `run=${encodeURIComponent(name)}`).join("&")}`;
}
