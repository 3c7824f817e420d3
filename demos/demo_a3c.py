"""A3C on CartPole-v0: two actors find gradients, a learner applies each as it comes.

    python demos/demo_a3c.py    # or with a seed, and the most episodes of an actor: 7 1500
    accelerate launch --config_file configs/accelerate/cpu.yaml --num_processes 3 demos/demo_a3c.py

The loop is in your own hands. An actor pulls the newest weights when it wants to, here before every
message, plays, and pushes the gradient of what it saw; it goes on while the learner is at work.
The learner counts by how many versions a gradient is behind, and refuses one that is too old.
Solved is an actor's return, smoothed by 0.9 and 0.1, above 190 five episodes running.
"""

import sys

import numpy as np

import evorl

ACTORS, ENVS, STEPS = 2, 1, 64
SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 1
EPISODES = int(sys.argv[2]) if len(sys.argv) > 2 else 1500
SPEC = evorl.EnvSpec("CartPole-v1", backend="sync", kwargs={"max_episode_steps": 200})
ALGORITHM = evorl.A3C(
    rollout_steps=STEPS, lr=1e-3, gae_lambda=0.95, entropy_coef=0.01, normalize_advantage=True
)


def act(end: evorl.ActorEnd) -> None:
    """Pull, play, push, until the learner says that it is over."""
    weights = end.newest()
    if weights is None:
        return
    env = evorl.make_vector_env(SPEC, 1, ENVS)
    networks = ALGORITHM.networks(evorl.observation_spec(env.observation), env.action)
    copy = evorl.copy_of(weights.fields, networks, ALGORITHM)
    actor = evorl.Actor(copy, env, STEPS, seed=SEED, number=end.slot, fellows=ACTORS)
    while (weights := end.newest()) is not None:  # the newest there is: nobody waits for it
        actor.load(weights.fields, weights.version)
        if not end.send(actor.play()):  # waits while two are not taken
            break
    env.close()


def learn(exchange: evorl.BusExchange, population: evorl.Population) -> list[int]:
    """Apply every gradient once, in order of arrival; episodes of each actor until it solved."""
    weights, steps = evorl.WeightsMessage(population), np.zeros(1, np.int64)
    smoothed, running = [0.0] * ACTORS, [0] * ACTORS
    played, lags = [0] * ACTORS, list[int]()
    while max(running) < 5 and max(played) < EPISODES:
        exchange.publish(weights(0, steps), generation=0)
        for message in exchange.take():
            fields, slot = message.fields, message.slot
            steps += fields["steps"].numpy()
            lags.append(message.lag)
            if not message.late:
                population.apply([fields["gradient0"]], fields["updates"].numpy())
            for total in fields["returns"].tolist():
                played[slot] += 1
                smoothed[slot] = 0.9 * smoothed[slot] + 0.1 * total
                running[slot] = running[slot] + 1 if smoothed[slot] > 190 else 0
                if played[slot] % 100 == 0:
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
    tanh = {name: evorl.Architecture((64, 64), "tanh") for name in ("policy", "value")}
    genome = evorl.Genome(0, tanh, ALGORITHM.hyperparameters)
    population = evorl.Population([genome], networks, ALGORITHM, seed=SEED)
    limits = evorl.Limits(1, ENVS, STEPS, spaces.observation, spaces.action)
    inbox = evorl.Inbox(population, limits, slots=ACTORS, max_lag=50)
    exchange = evorl.BusExchange(inbox, bus, lockstep=False, timeout=600, greeting={})
    learn(exchange, population)
    exchange.close()


if __name__ == "__main__":
    evorl.Parallel.runner(1 + ACTORS, topology="star")(main)
