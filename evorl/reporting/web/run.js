// The report of one run: its sections stay, what they show changes with the data.
class RunReport {
  constructor(run) {
    this.run = run;
    const get = () => this.run;
    this.top = el("div");
    const mutations = mutationsSection(get), architectures = architecturesSection(get);
    this.sections = [fitnessSection(get), treeSection(get), hyperparametersSection(get), mutations, architectures, trainingSection(get), configSection(get)];
    this.node = el("article", { "aria-label": `report of ${run.name}` }, this.top);
    for (const section of this.sections) {
      if (section === architectures) continue;
      this.node.append(section === mutations ? el("div", { class: "pair" }, mutations.node, architectures.node) : section.node);
    }
    document.addEventListener("followed", () => { if (this.node.isConnected) this.update(this.run); });
    this.update(run);
  }

  update(run) {
    this.run = run;
    this.top.replaceChildren(...run.warnings.map((text) => el("p", { class: "warning", role: "status" }, text)), headline(run));
    for (const section of this.sections) section.update();
  }
}
