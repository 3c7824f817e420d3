// Numbers, times and counts as text.
const MINUS = "−";

// Decimals of figures that stand together, by the rule of evorl/runs/estimates.py: those of two digits of
// their middle error, or four digits of the largest figure where no error is known.
function decimals(values, errors = []) {
  const known = (list) => list.filter((value) => Number.isFinite(value)).map(Math.abs);
  const size = Math.max(0, ...known(values));
  const found = known(errors).filter((error) => error > 1e-6 * size).sort((a, b) => a - b);
  const places = (digits, number) => Math.min(Math.max(0, digits - 1 - Math.floor(Math.log10(number))), 12);
  if (found.length) return places(2, found[Math.floor((found.length - 1) / 2)]);
  return size ? places(4, size) : 1;
}

function fixed(value, places, least = places) {
  if (value === null || value === undefined) return "—";
  const text = Math.abs(value).toLocaleString("en-US", { minimumFractionDigits: least, maximumFractionDigits: places });
  return (value < 0 && /[1-9]/.test(text) ? MINUS : "") + text;
}

// A figure, with its error if that is known.
function figure(value, error = null) {
  if (value === null || value === undefined) return "—";
  if (error !== null) {
    const places = decimals([value], [error]);
    return `${fixed(value, places)} ± ${fixed(error, places)}`;
  }
  if (value !== 0 && Math.abs(value) < 0.001) return value.toExponential(2).replace(/\.?0*e/, "e").replace("-", MINUS);
  return fixed(value, decimals([value]), 0);
}

// A hyperparameter: near 1, as gamma is, the digits that tell it from 1.
function precise(value) {
  if (value === null || value === undefined) return "—";
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  if (value > 0.9 && value < 1) return String(Number(value.toFixed(Math.min(12, 3 - Math.floor(Math.log10(1 - value)) - 1))));
  return Math.abs(value) < 0.0001 ? value.toExponential(2) : String(Number(value.toPrecision(3)));
}

function signed(value, error = null) {
  return (value > 0 ? "+" : "") + figure(value, error);
}

function count(value) {
  return value === null || value === undefined ? "—" : Math.round(value).toLocaleString("en-US");
}

// Short, for an axis: 200k, 1.2M.
function brief(value) {
  const size = Math.abs(value), sign = value < 0 ? MINUS : "";
  for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= unit) return `${sign}${Number((size / unit).toPrecision(3))}${name}`;
  }
  if (size !== 0 && size < 0.001) return sign + size.toExponential(0);
  return sign + Number(size.toPrecision(6));
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "—";
  if (seconds < 60) return `${seconds < 10 ? Number(seconds.toFixed(1)) : Math.round(seconds)} s`;
  const minutes = Math.floor(Math.round(seconds) / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds) % 60} s`;
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${days} days ${hours % 24} h`;
}

function age(since) {
  const seconds = Math.max(0, Date.now() / 1000 - since);
  if (seconds < 90) return "just now";
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

// A figure and the ends of its interval: [value, low, high].
function even(values) {
  const [, low, high] = values, places = decimals([values[0]], low === null ? [] : [(high - low) / 2]);
  return values.map((value) => fixed(value, places));
}

function range(values) {
  const [, low, high] = even(values);
  return values[1] === null ? "no interval" : `${low} to ${high}`;
}

function estimate(values) {
  return `${even(values)[0]} (${range(values)})`;
}
