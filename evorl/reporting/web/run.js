// The report of one run: its sections stay, what they show changes with the data.
class RunReport {
  constructor(run) {
    this.run = run;
    const get = () => this.run;
    this.top = el("div");
    const mutations = mutationsSection(get), architectures = architecturesSection(get);
    const fitness = fitnessSection(get), tree = treeSection(get), hyperparameters = hyperparametersSection(get);
    const parallel = parallelSection(get), importance = importanceSection(get);
    const training = trainingSection(get), config = configSection(get);
    this.sections = [fitness, tree, hyperparameters, parallel, importance, mutations, architectures, training, config];
    this.actors = el("div"); // has a section once there is something to tell of actors
    this.node = el("article", { "aria-label": `report of ${run.name}` }, this.top, fitness.node, tree.node, hyperparameters.node, parallel.node, importance.node,
      el("div", { class: "pair" }, mutations.node, architectures.node), training.node, this.actors, config.node);
    document.addEventListener("followed", () => { if (this.node.isConnected) this.update(this.run); });
    this.update(run);
  }

  update(run) {
    this.run = run;
    this.top.replaceChildren(...run.warnings.map((text) => el("p", { class: "warning", role: "status" }, text)), headline(run));
    if (run.actors && !this.actors.firstChild) {
      const section = actorsSection(() => this.run);
      this.sections.push(section);
      this.actors.append(section.node);
    }
    for (const section of this.sections) section.update();
  }
}
