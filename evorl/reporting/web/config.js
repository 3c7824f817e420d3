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
      const finished = run.state === "finished";
      body.replaceChildren(
        el("p", { class: "note" }, "Trains the same again; updates that are not compiled give the same bytes on the same machine and versions, with as many processes as the run had."), command(run.commands.again),
        ...(finished ? [] : [el("p", { class: "note" }, "Goes on with it after it was stopped:"), command(run.commands.resume)]),
        el("p", { class: "note" }, "The best agent's ancestors, and its schedule of hyperparameters to train by:"), command(run.commands.lineage), command(run.commands.schedule));
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
