"""Ape-X DQN on CartPole with episodes of 200: two actors fill a prioritised replay.

    python demos/demo_apex_dqn.py    # or with a seed, and the most episodes of an actor: 7 600
    accelerate launch --config_file configs/accelerate/cpu.yaml --num_processes 3 \\
        demos/demo_apex_dqn.py

The loop is in your own hands. An actor pulls the newest weights when it wants to, here before every
message, explores in its own way, and sends n-step transitions with its TD errors: these are their
first priorities. The learner stores them, and makes an update for every other step.

Solved is an actor's return, smoothed by 0.9 and 0.1, above 190 five episodes running; else it ends
after 600 episodes of an actor.
"""

import sys

import numpy as np

import evorl

ACTORS, STEPS, START, UPDATES = 2, 16, 500, 8  # updates for each message, after so many steps
SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 1
EPISODES = int(sys.argv[2]) if len(sys.argv) > 2 else 600
SPEC = evorl.EnvSpec("CartPole-v1", backend="sync", kwargs={"max_episode_steps": 200})
ALGORITHM = evorl.DQN(n_step=3, gamma=0.98, epsilon_end=0.1, epsilon_steps=3000)


def act(end: evorl.ActorEnd) -> None:
    """Pull, play, push, until the learner says that it is over."""
    weights = end.newest()
    if weights is None:
        return
    env = evorl.make_vector_env(SPEC, 1, 1)
    networks = ALGORITHM.networks(evorl.observation_spec(env.observation), env.action)
    copy = evorl.copy_of(weights.fields, networks, ALGORITHM)
    who = {"number": end.slot, "fellows": ACTORS}
    actor = evorl.Actor(copy, env, STEPS, seed=SEED, first_errors=True, **who)
    while (weights := end.newest()) is not None:  # the newest there is: nobody waits for it
        actor.load(weights.fields, weights.version)
        if not end.send(actor.play()):  # waits while two are not taken
            break
    env.close()


def learn(
    exchange: evorl.BusExchange, population: evorl.Population, sampler: evorl.PrioritisedSampler
) -> None:
    """Store, sample, update, until an actor has solved it."""
    weights, steps = evorl.WeightsMessage(population, targets=True), np.zeros(1, np.int64)
    smoothed, running, played = np.zeros(ACTORS), *np.zeros((2, ACTORS), int)
    lags = list[int]()
    while running.max() < 5 and played.max() < EPISODES:
        exchange.publish(weights(0, steps), generation=0)
        for message in exchange.take():
            slot, fields = message.slot, message.fields
            steps += fields["steps"].numpy()
            lags.append(message.lag)
            windows = {name: own.numpy() for name, own in message.experience.items()}
            errors, _ = windows.pop("td_errors"), windows.pop("cut")
            sampler.insert(evorl.Transitions(**windows), windows["env"], errors)  # one each
            if steps[0] > START:
                requests = population.requests(np.array([UPDATES]))
                learned = population.learn(sampler.sample(requests), requests)
                sampler.update_priorities(learned.priorities)
            for total in fields["returns"].tolist():
                played[slot] += 1
                smoothed[slot] = 0.9 * smoothed[slot] + 0.1 * total
                running[slot] = (running[slot] + 1) * (smoothed[slot] > 190)
                if played[slot] % 50 == 0:
                    print(f"actor {slot}  episode {played[slot]}  return {smoothed[slot]:.1f}")
    print(
        f"{'solved' if running.max() >= 5 else 'not solved'} after {played.max()} episodes of an"
        f" actor, {steps[0]} frames, {len(lags)} messages; mean lag {np.mean(lags):.1f}"
    )


def main() -> None:
    """Rank 0 learns, the others play."""
    bus = evorl.Parallel.bus()
    if bus.rank > 0:
        act(evorl.ActorEnd(bus, timeout=600))
        return
    env = evorl.make_vector_env(SPEC, 1, 1)  # for its spaces
    obs, action = env.observation, env.action
    networks = ALGORITHM.networks(evorl.observation_spec(obs), action)
    genome = evorl.Genome(0, {"q": evorl.Architecture((64, 64))}, ALGORITHM.hyperparameters)
    population = evorl.Population([genome], networks, ALGORITHM, seed=SEED)
    buffer = evorl.ReplayBuffer(50_000, obs.shape, obs.dtype, ALGORITHM.n_step)
    sampler = evorl.PrioritisedSampler(buffer, [evorl.generator(SEED, "sample")])
    limits = evorl.Limits(1, 1, STEPS, obs, action, ALGORITHM.n_step)
    inbox = evorl.Inbox(population, limits, slots=ACTORS)
    exchange = evorl.BusExchange(inbox, bus, lockstep=False, timeout=600, greeting={})
    learn(exchange, population, sampler)
    exchange.close()
    env.close()


if __name__ == "__main__":
    evorl.Parallel.runner(1 + ACTORS, topology="star")(main)
