// The one tooltip: beside a point of a chart, inside the window.
const tooltip = document.getElementById("tooltip");

// content: {title, pairs: [[name, value], …], text}
function showTooltip(content, left, top) {
  tooltip.replaceChildren(
    el("b", {}, content.title),
    ...(content.pairs ?? []).map(([name, value]) => el("div", {}, el("span", {}, name), el("span", {}, value))),
    ...(content.text ? [el("p", {}, content.text)] : []));
  tooltip.hidden = false;
  const { width, height } = tooltip.getBoundingClientRect();
  const right = left + 16 + width < window.innerWidth - 8;
  const x = right ? left + 16 : Math.max(8, Math.min(left - width - 16, window.innerWidth - width - 8));
  const y = Math.max(8, Math.min(top - height - 12 < 8 ? top + 18 : top - height - 12, window.innerHeight - height - 8));
  tooltip.style.left = `${x}px`;
  tooltip.style.top = `${y}px`;
}

function hideTooltip() {
  tooltip.hidden = true;
}
