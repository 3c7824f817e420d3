"""A live population as the main rank sees it at a generation's end."""

from evorl.pipeline.everybody import Everybody


def together(population):
    everybody = Everybody(population.genomes, population.problem, population.algorithm)
    states = [population.state(i) for i in range(population.size)]
    everybody.meet(population.genomes, states, population.alive.tolist())
    return everybody
