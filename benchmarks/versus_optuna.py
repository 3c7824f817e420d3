"""Optuna as a contender of versus.py: TPE and a median pruner over agents of Stable-Baselines3.

Two workers share a study by a journal file, as Optuna's documentation advises. A trial trains for
as many steps as rl-baselines3-zoo gives this task, and is evaluated EVALUATIONS times on the way;
a worse one than the median of those before is given up. What is returned is the agent of the best
evaluation of all.
"""

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from stable_baselines3.common.callbacks import BaseCallback
from versus_contender import Job, Log, evaluate, main
from versus_sb3 import greedy, load, make, spaces

EVALUATIONS = 20  # of a trial
# Optuna's default is 10 and 5: on LunarLander there would be neither TPE nor pruning in the time.
STARTUP_TRIALS = 4
WARMUP = EVALUATIONS // 4  # evaluations before a trial may be given up


class Report(BaseCallback):
    """Evaluates a trial now and then; its training ends when it is given up, or time is up."""

    def __init__(self, job: Job, log: Log, trial: optuna.Trial) -> None:
        super().__init__()
        self.job, self.log, self.trial = job, log, trial
        self.every = job.steps // EVALUATIONS
        self.steps = log.latest["env_steps"]  # of this worker's trials before
        self.trials = log.latest["trials"] + 1
        self.scores: list[float] = []
        self.pruned = False

    def _on_step(self) -> bool:
        if self.job.left < 0:
            return False
        if self.num_timesteps < (len(self.scores) + 1) * self.every:
            return True
        score = evaluate(greedy(self.model), self.job)
        steps = self.steps + self.num_timesteps
        self.log.better(score, steps, self.trials, self.model.save)
        self.scores.append(score)
        self.trial.report(score, len(self.scores))
        self.pruned = self.trial.should_prune()
        return not self.pruned


def train(job: Job) -> None:
    """One worker: trial after trial, until its time is up."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    log, seed = Log(job, job.worker), 1000 * job.seed + job.worker
    study = optuna.create_study(
        study_name="versus",
        direction="maximize",
        storage=JournalStorage(JournalFileBackend(str(job.folder / "journal.log"))),
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS),
        pruner=optuna.pruners.MedianPruner(STARTUP_TRIALS, WARMUP),
    )

    def objective(trial: optuna.Trial) -> float:
        own = {name: space.value(suggest(trial, name)) for name, space in found.items()}
        report = Report(job, log, trial)
        make(job, own, seed=1000 * seed + trial.number).learn(job.steps, report)
        if report.pruned or not report.scores:
            raise optuna.TrialPruned
        return max(report.scores)

    def suggest(trial: optuna.Trial, name: str) -> float:
        low, high = found[name].bounds
        if found[name].whole:
            return trial.suggest_int(name, round(low), round(high))
        return trial.suggest_float(name, low, high, log=found[name].log)

    found = spaces(job)
    study.optimize(objective, timeout=job.left)


if __name__ == "__main__":
    main(train, load)
