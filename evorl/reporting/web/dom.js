// Elements. Text always goes in as text: no name of a run can become markup.
const SVG = "http://www.w3.org/2000/svg";

function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

// A card with a heading, a line on how to read it, and what it holds.
function card(key, title, note, ...children) {
  return el("section", { class: "card", id: key, "aria-label": title },
    el("header", {}, el("h2", {}, title), note ? el("p", { class: "note" }, note) : null), ...children);
}

// Check boxes that are made again only when there are others: what is focused stays so.
class Checks {
  constructor(label, isOn, toggle) {
    this.node = el("fieldset", { class: "checks", "aria-label": label });
    this.isOn = isOn;
    this.toggle = toggle;
    this.known = "";
  }

  // items: {key, label, swatch: an SVG node or null}
  show(items) {
    const known = JSON.stringify(items.map((item) => [item.key, item.label, item.mark ?? ""]));
    if (known === this.known) return;
    this.known = known;
    this.node.replaceChildren(...items.map((item) => {
      const box = el("input", { type: "checkbox", "data-key": item.key, change: () => this.toggle(item.key, box.checked) });
      box.checked = this.isOn(item.key);
      return el("label", {}, box, item.swatch ?? null, item.label);
    }));
  }
}

function swatch(colour, d = "M1 1H13V13H1Z") {
  return svg("svg", { class: "swatch", viewBox: "0 0 14 14", "aria-hidden": "true" }, svg("path", { d, fill: colour }));
}
