// Numbers, times and counts as text.
const MINUS = "−";

function figure(value, digits = 4) {
  if (value === null || value === undefined) return "—";
  if (value === 0) return "0";
  const size = Math.abs(value);
  let text;
  if (size >= 1000) text = Math.round(size).toLocaleString("en-US");
  else if (size >= 10) text = size.toFixed(1);
  else if (size >= 0.001) text = String(Number(size.toPrecision(digits)));
  else text = size.toExponential(2).replace(/\.?0*e/, "e");
  return (value < 0 ? MINUS : "") + text;
}

// A hyperparameter: near 1, as gamma is, the digits that tell it from 1.
function precise(value) {
  if (value === null || value === undefined) return "—";
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  if (value > 0.9 && value < 1) return String(Number(value.toFixed(Math.min(12, 3 - Math.floor(Math.log10(1 - value)) - 1))));
  return Math.abs(value) < 0.0001 ? value.toExponential(2) : String(Number(value.toPrecision(3)));
}

function signed(value) {
  return (value > 0 ? "+" : "") + figure(value);
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

// Figures that belong together, with equally many decimals.
function even(values) {
  const places = Math.max(...values.map((value) => Math.abs(value ?? 0))) >= 10 ? 1 : 3;
  return values.map((value) => (value === null ? "—" : value.toFixed(places).replace("-", MINUS)));
}

function range(values) {
  const [, low, high] = even(values);
  return values[1] === null ? "no interval" : `${low} to ${high}`;
}

function estimate(values) {
  return `${even(values)[0]} (${range(values)})`;
}
