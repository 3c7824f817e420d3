// Puts the page together, and keeps it fresh where it is served.
const start = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page");

function readTheme() {
  try { return localStorage.getItem("evorl-theme"); } catch { return null; }
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  try {
    if (theme) localStorage.setItem("evorl-theme", theme);
    else localStorage.removeItem("evorl-theme");
  } catch { /* a file opened from disk may have no storage */ }
}

function themeButton() {
  const dark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const button = el("button", { type: "button", id: "theme", click: () => { setTheme(dark() ? "light" : "dark"); label(); } });
  const label = () => { button.textContent = dark() ? "light" : "dark"; button.setAttribute("aria-label", `switch to ${dark() ? "light" : "dark"} colours`); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", label);
  label();
  return button;
}

function axisChoice() {
  const words = { env_steps: "steps", generation: "generation", seconds: "time" };
  return el("fieldset", { class: "choice", "aria-label": "horizontal axis" }, Object.entries(words).map(([value, text]) => {
    const input = el("input", { type: "radio", name: "axis", value, change: () => { view.axis = value; redraw(); } });
    input.checked = view.axis === value;
    return el("label", {}, input, text);
  }));
}

class ReportPage {
  constructor(data) {
    data.runs.forEach(prepare);
    this.data = data;
    this.current = data.runs[0].name;
    this.state = el("span", { class: "state" });
    this.line = el("select", { "aria-label": "whose line of descent", change: () => follow(this.line.value) });
    this.which = el("select", { id: "which", "aria-label": "run", change: () => this.open(this.which.value) });
    this.bar = el("nav", { class: "bar", "aria-label": "view" },
      start.live ? el("a", { href: "/" }, "all runs") : null, el("span", { class: "who" }), this.state, el("span", { class: "space" }),
      axisChoice(), el("label", { class: "pick" }, "line of", this.line), themeButton());
    this.body = el("div");
    page.append(this.bar);
    if (data.runs.length > 1) {
      this.comparison = new Comparison(data);
      page.append(el("h1", {}, `${data.runs.length} runs`), el("p", { class: "muted intro" }, [...new Set(data.runs.map((run) => run.env))].join(", ")), this.comparison.node,
        el("section", { class: "bar" }, el("h2", {}, "One run in detail"), el("label", { class: "pick" }, this.which)));
    }
    page.append(this.body, el("p", { class: "foot" }, "Made by evorl. This page asks nothing of any other machine."));
    document.addEventListener("followed", () => this.choices());
    this.update(data);
  }

  get run() {
    return this.data.runs.find((run) => run.name === this.current) ?? this.data.runs[0];
  }

  open(name) {
    this.current = name;
    view.line = "best";
    this.report = null;
    this.update(this.data);
    redraw();
  }

  update(data) {
    for (const run of data.runs) if (!run.byId) prepare(run);
    this.data = data;
    this.comparison?.update(data);
    if (this.report) this.report.update(this.run);
    else {
      this.report = new RunReport(this.run);
      this.body.replaceChildren(this.report.node);
    }
    this.choices();
    redraw();
  }

  choices() {
    const { run } = this, several = this.data.runs.length > 1;
    this.bar.querySelector(".who").textContent = several ? `${this.data.runs.length} runs` : run.name;
    this.state.className = `state ${run.state}`;
    this.state.textContent = several ? `${run.name}: ${run.state}` : run.state;
    // Those of the latest generation, and whoever is followed: the charts lead to the others.
    const listed = new Set(run.rows.ids[run.count - 1] ?? []);
    if (view.line !== "best") listed.add(Number(view.line));
    const agents = [...listed].filter((id) => run.byId.has(id)).sort((a, b) => a - b).map((id) => run.byId.get(id));
    const options = [["best", run.best ? `the best agent, ${run.best.id}` : "the best agent"], ...agents.map((agent) => [String(agent.id), `agent ${agent.id}`])];
    const known = JSON.stringify(options);
    if (known !== this.known) {
      this.known = known;
      this.line.replaceChildren(...options.map(([value, text]) => el("option", { value }, text)));
    }
    this.line.value = options.some(([value]) => value === view.line) ? view.line : "best";
    if (several && this.which.options.length !== this.data.runs.length) this.which.replaceChildren(...this.data.runs.map(({ name }) => el("option", { value: name }, name)));
    this.which.value = this.current;
  }
}

class ListPage {
  constructor(data) {
    this.list = new RunList(data);
    page.append(el("nav", { class: "bar", "aria-label": "view" }, el("span", { class: "who" }, "evorl"), el("span", { class: "muted" }, data.folder), el("span", { class: "space" }), themeButton()), el("h1", {}, "Runs"), el("p", { class: "note intro" }, "A run's report follows it while it trains. Click on a column to sort by it."), this.list.node);
  }

  update(data) {
    this.list.update(data);
  }

  tick() {
    this.list.tick();
  }
}

// Asks for newer data every few seconds; the page is drawn again only when there is some.
function keepFresh(shown) {
  const notice = el("p", { class: "warning", role: "status", hidden: true });
  page.firstChild.after(notice);
  let tag = null;
  async function ask() {
    try {
      const answer = await fetch(start.live.url, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
      if (answer.status === 200) {
        tag = answer.headers.get("ETag");
        shown.update(await answer.json());
      }
      shown.tick?.();
      notice.hidden = answer.status === 200 || answer.status === 304;
      if (!notice.hidden) notice.textContent = `The data cannot be read just now: ${await answer.text()}`;
    } catch {
      notice.hidden = false;
      notice.textContent = "The dashboard does not answer. This page continues once it runs again.";
    }
    setTimeout(ask, document.hidden ? 5 * start.live.milliseconds : start.live.milliseconds);
  }
  tag = start.live.tag;
  setTimeout(ask, start.live.milliseconds);
}

setTheme(readTheme());
const shown = start.kind === "list" ? new ListPage(start.data) : new ReportPage(start.data);
if (start.live) keepFresh(shown);
document.documentElement.dataset.ready = "true";
