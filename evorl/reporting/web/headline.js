// What the run came to, in a line or two.
function headline(run) {
  const { score, env_steps: steps, evaluation_steps: evaluation } = run.headline, best = run.best;
  const seconds = run.rows.seconds[run.count - 1] ?? null;
  const spent = run.counts === "all" ? steps + evaluation : steps;
  const node = el("section", { class: "headline", "aria-label": "headline" });
  const left = el("div", {}, el("h1", {}, run.name), el("p", { class: "env" }, `${run.env} · seed ${run.seed} · ${METHODS[run.method] ?? run.method}`));
  if (score) {
    left.append(
      el("p", { class: "score", id: "score" }, even(score.mean)[0], el("small", {}, `95 % interval ${range(score.mean)}`)),
      el("p", { class: "note" }, `Mean of ${count(score.episodes)} held-out episodes; interquartile mean ${estimate(score.iqm)}.`));
  } else {
    left.append(
      el("p", { class: "score", id: "score" }, el("span", { class: "words" }, run.state === "running" ? "running" : run.state === "failed" ? "failed" : "not finished"),
        best ? el("small", {}, `best so far ${figure(best.confirmed ?? best.fitness)}`) : null),
      el("p", { class: "note" }, best ? `Agent ${best.id}, generation ${best.generation}${best.confirmed === null ? "" : ", on further episodes"}. ${ending(run)}` : "No generation has ended yet."),
      el("div", { class: "progress", role: "progressbar", "aria-label": "budget", "aria-valuemin": 0, "aria-valuemax": run.budget, "aria-valuenow": Math.min(spent, run.budget) }, el("div")));
    left.querySelector(".progress > div").style.width = `${Math.min(100, (100 * spent) / run.budget)}%`;
  }
  const tile = (name, value, small) => el("div", {}, el("dt", {}, name), el("dd", {}, value, small ? el("small", {}, small) : null));
  node.append(left, el("dl", { class: "tiles" },
    tile("training steps", brief(steps), `${count(steps)}, all agents`),
    tile("time", duration(seconds), run.state === "running" ? `${Math.round((100 * spent) / run.budget)} % of the budget spent` : null),
    tile("steps per second", seconds ? count(steps / seconds) : "—", "evaluations included"),
    tile("generations", count(run.count), `${run.population} agents each`),
    tile("agents born", count(run.agents.length), `${count(run.agents.filter((agent) => agent.parent !== null).length)} of them children`),
    tile("best agent", best ? `no. ${best.id}` : "—", best && run.byId.has(best.id) ? run.byId.get(best.id).architecture : null)));
  return node;
}

const METHODS = { evolution: "evolution", random_search: "random search", none: "no evolution" };

function ending(run) {
  if (run.state === "failed") return "The run ended by an error before its held-out score.";
  return run.state === "stopped" ? "The held-out score comes at the end, once it is resumed." : "The held-out score comes at the end.";
}
