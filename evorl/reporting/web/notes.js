// What a page may ask of its dashboard: tags and notes, and that a run stops. Only with the token that came with it.
async function send(address, message) {
  const answer = await fetch(address, { method: "POST", headers: { "Content-Type": "application/json", "X-Evorl-Token": start.live.token }, body: JSON.stringify(message), cache: "no-store" });
  if (!answer.ok) throw new Error(await answer.text());
}

function mayWrite() {
  return Boolean(start.live?.token);
}

// Tags and the note of a run, and a form to change them.
function notesOf(run) {
  const node = el("div", { class: "notes" });
  const show = () => node.replaceChildren(...run.tags.map((tag) => el("span", { class: "badge tag" }, tag)), ...(run.note ? [el("p", { class: "note" }, run.note)] : []),
    ...(mayWrite() && run.state !== "damaged" ? [el("button", { type: "button", class: "quiet", "aria-label": `tags and note of ${run.name}`, click: edit }, run.tags.length || run.note ? "edit" : "add a tag or note")] : []));
  function edit() {
    const tags = el("input", { type: "text", value: run.tags.join(", "), "aria-label": "tags, with commas between them", placeholder: "tags, with commas", maxlength: 400 });
    const note = el("textarea", { "aria-label": "note", placeholder: "note", rows: 2, maxlength: 2000 }), problem = el("p", { class: "note", role: "alert" });
    note.value = run.note;
    const save = async (event) => {
      event.preventDefault();
      const wanted = { tags: tags.value.split(",").map((tag) => tag.trim()).filter(Boolean), note: note.value.trim() };
      try {
        await send("/notes", { run: run.name, ...wanted });
        Object.assign(run, wanted);
        show();
      } catch (error) { problem.textContent = error.message; }
    };
    node.replaceChildren(el("form", { submit: save }, tags, note, el("span", {}, el("button", { type: "submit" }, "save"), " ", el("button", { type: "button", click: show }, "cancel")), problem));
    tags.focus();
  }
  show();
  return node;
}

// A second click is meant; the run then stops by itself once its next checkpoint is written.
function stopButton(run) {
  if (run.state !== "running") return null;
  if (run.stopping) return el("span", { class: "badge less" }, "stops after this generation");
  if (!mayWrite()) return null;
  const ask = (asking) => { button.textContent = asking ? "stop after this generation?" : "stop"; button.classList.toggle("asking", asking); };
  const button = el("button", { type: "button", class: "quiet", "aria-label": `stop ${run.name}`, click: async () => {
    if (button.textContent === "stop") { ask(true); return; }
    try {
      await send("/stop", { run: run.name });
      button.replaceWith(el("span", { class: "badge less" }, "stops after this generation"));
    } catch (error) { button.textContent = error.message; }
  }, blur: () => ask(false) }, "stop");
  return button;
}
