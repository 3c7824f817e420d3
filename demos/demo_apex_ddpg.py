"""Ape-X DDPG on Pendulum: two actors with noise of their own fill a prioritised replay.

    python demos/demo_apex_ddpg.py    # or with a seed, and the most episodes of an actor: 7 125
    accelerate launch --config_file configs/accelerate/cpu.yaml --num_processes 3 \\
        demos/demo_apex_ddpg.py

The loop is in your own hands. An actor pulls the newest weights when it wants to, here before every
message, explores in its own way, and sends n-step transitions with its TD errors: these are their
first priorities. The learner stores them, and makes an update for every step. Solved is an actor's
return, smoothed by 0.9 and 0.1, above −250 five times running; else 125 episodes are the end.
"""

import sys

import numpy as np

import evorl

ACTORS, STEPS, START, UPDATES = 2, 16, 500, 16  # updates for each message, after so many steps
SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 1
EPISODES = int(sys.argv[2]) if len(sys.argv) > 2 else 125
SPEC = evorl.EnvSpec("Pendulum-v1", backend="sync")
ALGORITHM = evorl.DDPG(n_step=3, gamma=0.98, batch_size=128)


def act(end: evorl.ActorEnd) -> None:
    """Pull, play, push, until the learner says that it is over."""
    weights = end.newest()
    if weights is None:
        return
    env = evorl.make_vector_env(SPEC, 1, 1)
    networks = ALGORITHM.networks(evorl.observation_spec(env.observation), env.action)
    copy = evorl.copy_of(weights.fields, networks, ALGORITHM)
    options = {"number": end.slot, "fellows": ACTORS, "first_errors": True}
    actor = evorl.Actor(copy, env, STEPS, seed=SEED, **options)
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
    smoothed, running, played = np.full(ACTORS, -1200.0), *np.zeros((2, ACTORS), int)
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
                running[slot] = (running[slot] + 1) * (smoothed[slot] > -250)
                if played[slot] % 10 == 0:
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
    hidden = dict.fromkeys(networks, evorl.Architecture((64, 64)))
    genome = evorl.Genome(0, hidden, ALGORITHM.hyperparameters)
    population = evorl.Population([genome], networks, ALGORITHM, seed=SEED)
    kinds = {"action_shape": action.shape, "action_dtype": action.dtype}
    buffer = evorl.ReplayBuffer(50_000, obs.shape, obs.dtype, ALGORITHM.n_step, **kinds)
    sampler = evorl.PrioritisedSampler(buffer, [evorl.generator(SEED, "sample")])
    limits = evorl.Limits(1, 1, STEPS, obs, action, ALGORITHM.n_step)
    inbox = evorl.Inbox(population, limits, ACTORS)
    exchange = evorl.BusExchange(inbox, bus, lockstep=False, timeout=600, greeting={})
    learn(exchange, population, sampler)
    exchange.close()
    env.close()


if __name__ == "__main__":
    evorl.Parallel.runner(1 + ACTORS, topology="star")(main)
