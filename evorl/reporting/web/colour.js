// Viridis for fitness, as it reads without colour vision and in grey; and colours for kinds of things.
const VIRIDIS = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];
const KINDS = ["#5b8ec4", "#e6a15c", "#5aa58a", "#b67bb4", "#7cc3d8", "#c9b458", "#d07f86", "#8d8a5c", "#9aa5b4"];
const DASHES = ["", "7 4", "2 4", "9 3 2 3", "4 2", "12 4", "2 2", "8 2 2 2 2 2"];
const SHADES = 28;

function viridis(share) {
  const at = Math.max(0, Math.min(1, share)) * (VIRIDIS.length - 1), i = Math.min(VIRIDIS.length - 2, Math.floor(at));
  const parts = [1, 3, 5].map((k) => {
    const [a, b] = [VIRIDIS[i], VIRIDIS[i + 1]].map((hex) => parseInt(hex.slice(k, k + 2), 16));
    return Math.round(a + (b - a) * (at - i));
  });
  return `rgb(${parts.join(",")})`;
}

// One of a few shades: marks of one shade are one path, however many they are.
function shadeOf(value, [low, high]) {
  return high > low ? Math.max(0, Math.min(SHADES - 1, Math.floor(((value - low) / (high - low)) * SHADES))) : SHADES - 1;
}

function shade(number) {
  return viridis(0.04 + 0.9 * (number / (SHADES - 1)));
}

function ramp(low, high, label) {
  const node = svg("svg", { viewBox: `0 0 ${SHADES} 1`, preserveAspectRatio: "none", "aria-hidden": "true" });
  for (let i = 0; i < SHADES; i += 1) node.append(svg("rect", { x: i, y: 0, width: 1.1, height: 1, fill: shade(i) }));
  return el("span", { class: "ramp" }, el("span", {}, label), el("span", {}, figure(low)), node, el("span", {}, figure(high)));
}
