// From values to pixels, and where the ticks go.
const BENDS = {
  linear: [(v) => v, (t) => t],
  log: [Math.log10, (t) => 10 ** t],
  log2: [Math.log2, (t) => 2 ** t],
  reverse_log: [(v) => -Math.log10(1 - v), (t) => 1 - 10 ** -t], // as gamma: by its distance to 1
};

function makeScale(kind, low, high, from, to, pad = 0) {
  const [bend, unbend] = BENDS[kind];
  let a = bend(low), b = bend(high);
  if (!(b > a)) [a, b] = [a - (Math.abs(a) * 0.1 || 0.5), b + (Math.abs(b) * 0.1 || 0.5)];
  const room = (b - a) * pad;
  a -= room;
  b += room;
  const scale = (value) => from + ((bend(value) - a) / (b - a)) * (to - from);
  scale.invert = (pixel) => unbend(a + ((pixel - from) / (to - from)) * (b - a));
  scale.low = unbend(a);
  scale.high = unbend(b);
  scale.clamp = (value) => Math.max(Math.min(from, to) - 1e4, Math.min(Math.max(from, to) + 1e4, scale(value)));
  scale.ticks = (wanted) => ticksOf(kind, scale.low, scale.high, wanted);
  return scale;
}

function ticksOf(kind, low, high, wanted) {
  let found = [];
  if (kind === "log") found = logTicks(low, high);
  if (kind === "reverse_log") found = logTicks(1 - high, 1 - low).map((v) => Number((1 - v).toPrecision(12))).reverse();
  if (kind === "log2") {
    for (let e = Math.ceil(Math.log2(low) - 1e-9); 2 ** e <= high * (1 + 1e-9); e += 1) found.push(2 ** e);
  }
  if (found.length < 2) found = linearTicks(low, high, wanted);
  const every = Math.ceil(found.length / (wanted + 2));
  return found.filter((_, i) => i % every === 0);
}

function linearTicks(low, high, wanted) {
  const rough = (high - low) / Math.max(1, wanted), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) found.push(Number((i * step).toPrecision(12)));
  return found;
}

function logTicks(low, high) {
  for (const digits of [[1], [1, 3], [1, 2, 5]]) {
    const found = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e += 1) {
      for (const digit of digits) {
        const value = Number((digit * 10 ** e).toPrecision(12));
        if (value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9)) found.push(value);
      }
    }
    if (found.length >= 3) return found;
  }
  return linearTicks(low, high, 4);
}

// Lowest and highest of many values; with `clip`, "low" or "both", without the few that lie far out.
function extent(values, clip = null) {
  const known = Float64Array.from(values.filter((v) => v !== null && v !== undefined)).sort();
  if (!known.length) return null;
  const low = known[0], high = known[known.length - 1];
  if (!clip || known.length < 8) return [low, high];
  const at = (share) => known[Math.round(share * (known.length - 1))];
  const reach = 2 * (at(0.75) - at(0.25));
  return [Math.max(low, Math.min(at(0.05), at(0.25) - reach)), clip === "low" ? high : Math.min(high, Math.max(at(0.95), at(0.75) + reach))];
}
