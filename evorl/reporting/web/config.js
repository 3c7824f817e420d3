// How to do it again, and with what options.
function configSection(get) {
  const body = el("div"), text = el("pre", { tabindex: 0, "aria-label": "configuration" }), facts = el("dl", { class: "plain" });
  const node = card("config", "Reproduce it", null, body, facts, el("details", {}, el("summary", {}, "The configuration"), text));
  let known = "";
  return {
    node,
    update() {
      const run = get(), { versions } = run.headline;
      const now = JSON.stringify([run.commands, run.config, versions, run.state]);
      if (now === known) return;
      known = now;
      const { again, resume, lineage, schedule } = run.commands, failed = run.state === "failed";
      const shown = (note, ...texts) => (texts.some(Boolean) ? [el("p", { class: "note" }, note), ...texts.filter(Boolean).map(command)] : []);
      body.replaceChildren(
        ...shown("Trains the same again; updates that are not compiled give the same bytes on the same machine and versions, with as many processes as the run had.", again),
        ...shown(failed ? "Resumes it, once the cause of its failure is gone:" : "Resumes it where it was stopped:", resume),
        ...(failed && !resume ? [el("p", { class: "note" }, "It would fail again as it is: start a new run of the configuration below, with what its failure names changed.")] : []),
        ...shown("The best agent's ancestors, and its schedule of hyperparameters to train by:", lineage, schedule));
      text.textContent = run.config;
      const pairs = [["folder", run.path], ...Object.entries(versions)];
      facts.replaceChildren(...pairs.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
    },
  };
}

function command(text) {
  const button = el("button", { type: "button", "aria-label": `copy: ${text}`, click: () => copy(text, button) }, "copy");
  return el("div", { class: "command" }, el("pre", {}, text), button);
}

function copy(text, button) {
  const area = el("textarea", { readonly: true });
  area.value = text;
  document.body.append(area);
  area.select();
  button.textContent = document.execCommand("copy") ? "copied" : "not allowed";
  area.remove();
  setTimeout(() => { button.textContent = "copy"; }, 1500);
}
