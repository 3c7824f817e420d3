"""IMPALA on CartPole with episodes of 200: two actors play, a learner corrects what is late.

    python demos/demo_impala.py    # or with a seed, and the most episodes of an actor: 7 400
    accelerate launch --config_file configs/accelerate/cpu.yaml --num_processes 3 \\
        demos/demo_impala.py

The loop is in your own hands. An actor pulls the newest weights when it wants to, here before every
unroll, plays, and sends what it saw with how likely its actions were. The learner keeps the latest
unrolls; each update takes the new one and some of the others, corrected by V-trace.

Solved is an actor's return, smoothed by 0.9 and 0.1, above 190 five episodes running. Seed 11 took
96 episodes of an actor, and a minute on a machine with much other work.
"""

import sys

import numpy as np

import evorl

ACTORS, STEPS, KEPT = 2, 32, 512
SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 1
EPISODES = int(sys.argv[2]) if len(sys.argv) > 2 else 400
SPEC = evorl.EnvSpec("CartPole-v1", backend="sync", kwargs={"max_episode_steps": 200})
ALGORITHM = evorl.IMPALA(
    rollout_steps=STEPS, updates=4, replay_unrolls=KEPT, replay_ratio=3, lr=1e-3, gamma=0.98
)


def act(end: evorl.ActorEnd) -> None:
    """Pull, play, push, until the learner says that it is over."""
    weights = end.newest()
    if weights is None:
        return
    env = evorl.make_vector_env(SPEC, 1, 1)
    networks = ALGORITHM.networks(evorl.observation_spec(env.observation), env.action)
    copy = evorl.copy_of(weights.fields, networks, ALGORITHM)
    actor = evorl.Actor(copy, env, STEPS, seed=SEED, number=end.slot, fellows=ACTORS)
    while (weights := end.newest()) is not None:  # the newest there is: nobody waits for it
        actor.load(weights.fields, weights.version)
        if not end.send(actor.play()):  # waits while two are not taken
            break
    env.close()


def learn(exchange: evorl.BusExchange, population: evorl.Population) -> list[int]:
    """Updates on every unroll and on replayed ones; episodes of each actor until it solved."""
    weights, steps = evorl.WeightsMessage(population), np.zeros(1, np.int64)
    store = evorl.UnrollStore(KEPT, agents=1)
    sampler = evorl.UnrollSampler(store, [evorl.generator(SEED, "sample")])
    values = {name: np.array([own]) for name, own in ALGORITHM.hyperparameters.items()}
    smoothed, running, played = [0.0] * ACTORS, [0] * ACTORS, [0] * ACTORS
    lags = list[int]()
    while max(running) < 5 and max(played) < EPISODES:
        exchange.publish(weights(0, steps), generation=0)
        for message in exchange.take():
            steps += message.fields["steps"].numpy()
            lags.append(message.lag)
            unrolls = message.experience
            store.add(unrolls | {"reward": 0.05 * unrolls["reward"]})  # returns of 10, not of 200
            requests = population.requests(*ALGORITHM.minibatches(values, store.new))
            population.learn(sampler.sample(requests), requests)
            store.new = 0
            for total in message.fields["returns"].tolist():
                slot = message.slot
                played[slot] += 1
                smoothed[slot] = 0.9 * smoothed[slot] + 0.1 * total
                running[slot] = running[slot] + 1 if smoothed[slot] > 190 else 0
                if played[slot] % 20 == 0:
                    print(f"actor {slot}  episode {played[slot]}  return {smoothed[slot]:.1f}")
    word = "solved" if max(running) >= 5 else "not solved"
    print(
        f"{word} after {max(played)} episodes of an actor, {int(steps[0])} frames,"
        f" {exchange.inbox.version + 1} messages; mean lag {np.mean(lags):.1f}, at most {max(lags)}"
    )
    return played


def main() -> None:
    """Rank 0 learns, the others play."""
    bus = evorl.Parallel.bus()
    if bus.rank > 0:
        act(evorl.ActorEnd(bus, timeout=600))
        return
    spaces = evorl.make_vector_env(SPEC, 1, 1)
    networks = ALGORITHM.networks(evorl.observation_spec(spaces.observation), spaces.action)
    spaces.close()
    hidden = {name: evorl.Architecture((64, 64), "tanh") for name in networks}
    genome = evorl.Genome(0, hidden, ALGORITHM.hyperparameters)
    population = evorl.Population([genome], networks, ALGORITHM, seed=SEED)
    limits = evorl.Limits(1, 1, STEPS, spaces.observation, spaces.action)
    inbox = evorl.Inbox(population, limits, slots=ACTORS)
    exchange = evorl.BusExchange(inbox, bus, lockstep=False, timeout=600, greeting={})
    learn(exchange, population)
    exchange.close()


if __name__ == "__main__":
    evorl.Parallel.runner(1 + ACTORS, topology="star")(main)
