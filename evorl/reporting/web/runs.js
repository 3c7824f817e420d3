// The list of all runs, from which reports open.
class RunList {
  constructor(data) {
    this.chosen = new Set();
    this.rows = new Map();
    this.search = el("input", { type: "search", placeholder: "filter by name", size: 24, "aria-label": "filter", input: () => this.show() });
    this.compare = el("a", { class: "button" }, "compare");
    this.body = el("tbody");
    const heads = [["", "tick"], ["run"], ["environment"], ["state"], ["score", "right"], ["training steps", "right"], ["last written", "right"]];
    this.table = el("table", { class: "stack" }, el("thead", {}, el("tr", {}, heads.map(([text, name]) => el("th", { class: name, scope: "col" }, text)))), this.body);
    this.empty = el("p", { class: "empty" });
    this.node = el("section", { class: "card" }, el("div", { class: "checks" }, this.search, this.compare), this.table, this.empty);
    this.update(data);
  }

  update(data) {
    this.data = data;
    this.show();
  }

  show() {
    const wanted = this.search.value.toLowerCase();
    const runs = this.data.runs.filter((run) => `${run.name} ${run.env} ${run.state}`.toLowerCase().includes(wanted));
    const rows = runs.map((run) => this.rowOf(run)); // a row that says the same stays, with its focus
    if (rows.length !== this.body.children.length || rows.some((row, i) => row !== this.body.children[i])) this.body.replaceChildren(...rows);
    this.table.hidden = !runs.length;
    this.empty.hidden = runs.length > 0;
    this.empty.textContent = this.data.runs.length ? "No run matches." : `There are no runs in ${this.data.folder} yet. They appear here as soon as one begins.`;
    this.link();
  }

  link() {
    const chosen = this.data.runs.filter((run) => this.chosen.has(run.name)).map((run) => run.name);
    this.compare.textContent = chosen.length < 2 ? "tick two runs to compare" : `compare ${chosen.length} runs`;
    this.compare.setAttribute("aria-disabled", String(chosen.length < 2));
    if (chosen.length < 2) this.compare.removeAttribute("href");
    else this.compare.setAttribute("href", reportAddress(chosen));
  }

  rowOf(run) {
    const text = JSON.stringify(run);
    if (this.rows.get(run.name)?.text !== text) this.rows.set(run.name, { text, node: this.row(run) });
    return this.rows.get(run.name).node;
  }

  tick() {
    for (const cell of this.body.querySelectorAll("[data-changed]")) cell.textContent = age(Number(cell.dataset.changed));
  }

  row(run) {
    const box = el("input", { type: "checkbox", "aria-label": `compare ${run.name}`, change: () => { if (box.checked) this.chosen.add(run.name); else this.chosen.delete(run.name); this.link(); } });
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
    return el("tr", { "data-run": run.name }, cell("", "tick", box), cell("", "main", name), cell("", "keep", run.env), cell("", "", stateOf(run), actorsBadge(run)),
      cell("score", "right", ...score), steps, cell("last written", "right", el("span", { "data-changed": run.changed }, age(run.changed))));
  }
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
