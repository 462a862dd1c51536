"""The one list of what a run records: names, units, meaning. Computes nothing.

A name with `<id>` or `<name>` stands for one metric per actor, or per quantity of the agent's or
the user's own. A test compares this list with what runs emit.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Metric(NamedTuple):
    """One line of the list."""

    unit: str
    meaning: str


METRICS: dict[str, Metric] = {
    # Where the run is; every record carries these four.
    "env_steps": Metric("env steps", "steps of all training environments so far"),
    "opt_steps": Metric("opt steps", "optimisation steps so far"),
    "wall_s": Metric("s", "wall-clock time since training began"),
    "train_s": Metric("s", "the same, without what came before the first step and after the last"),
    "time": Metric("s", "clock time of the record, since 1970 in UTC; in `metrics.jsonl` alone"),
    # Rates, each over the time since the record before.
    "fps": Metric("env steps/s", "environment steps of all actors together"),
    "opt_steps_per_sec": Metric("opt steps/s", "optimisation steps"),
    "samples_total": Metric("transitions", "transitions stored in replay so far"),
    "samples_per_sec": Metric("transitions/s", "transitions stored in replay"),
    "samples_per_opt_steps": Metric("transitions", "stored for each optimisation step, whole run"),
    "samples_per_insert": Metric("1", "how often a stored transition was sampled, whole run"),
    # Returns.
    "episodes": Metric("episodes", "training episodes ended so far"),
    "episode/return_mean": Metric("reward", "of training episodes since the record before"),
    "episode/return_max": Metric("reward", "the best of them"),
    "episode/length_mean": Metric("env steps", "their length"),
    "episode/success_rate": Metric(
        "1", "share that succeeded, where infos report `is_success` or `success`"
    ),
    "info/<name>": Metric("", "mean of a number of the info, over the same episodes; see env.info"),
    "eval_reward": Metric("reward", "score of an evaluation: mean return, greedy as a rule"),
    "eval/return_min": Metric("reward", "the worst of its episodes"),
    "eval/return_max": Metric("reward", "the best of its episodes"),
    "eval/return_std": Metric("reward", "spread of its episodes"),
    "eval/length_mean": Metric("env steps", "length of its episodes"),
    "eval/success_rate": Metric("1", "share of its episodes that succeeded"),
    "eval/info/<name>": Metric("", "mean of a number of the info, over its episodes"),
    "eval/model_version": Metric("opt steps", "the model that was evaluated"),
    "eval/best": Metric("reward", "the best score so far, where it says which model is best"),
    # How old the policy behind the sampled data is, in the newest sampled batch. An actor's own
    # lag, that of what it sends now, is `opt_steps` less its `actor/<id>/model_version`.
    "lag/versions_mean": Metric(
        "opt steps", "sampled data's age: learner's opt steps minus those of the model that acted"
    ),
    "lag/versions_max": Metric("opt steps", "the oldest in the sampled batch"),
    "lag/at_insert_mean": Metric(
        "opt steps",
        "age of experience when it is stored: behind the learner, of the model that acted",
    ),
    "lag/at_insert_max": Metric("opt steps", "the oldest that was stored"),
    "lag/seconds_mean": Metric("s", "sampled data's age: since the model that acted was published"),
    "lag/seconds_max": Metric("s", "the oldest in the sampled batch"),
    # The ledger: produced = stored + dropped + lost + in_flight, in transitions, whole run.
    "ledger/produced": Metric("transitions", "made by actors, living and dead"),
    "ledger/stored": Metric("transitions", "inserted into replay"),
    "ledger/dropped": Metric(
        "transitions", "received and not stored: 0 unless proxy.overflow=drop"
    ),
    "ledger/lost": Metric("transitions", "made by actors that died before sending them"),
    "ledger/in_flight": Metric("transitions", "on their way"),
    # What the link did not accept, whole run; absent until there is one.
    "link/refused": Metric("messages", "from peers that were turned away, or may not send them"),
    "link/stale": Metric("messages", "of an actor's earlier life, after its place was taken"),
    "link/unknown": Metric("messages", "from those who have not said who they are"),
    "link/duplicate": Metric("messages", "that came twice, and count once"),
    "link/after_gap": Metric("messages", "after one lost on its way; they were sent again"),
    "link/undelivered": Metric("messages", "to actors that were gone, or took none in"),
    "link/malformed": Metric("messages", "that could not be read; their senders were cut off"),
    "link/foreign_run": Metric("messages", "of another run"),
    "link/foreign_protocol": Metric("messages", "of another version of asyncrl"),
    "link/impostor": Metric("messages", "in the name of another actor"),
    "link/handshake_failed": Metric("connections", "without the right key, or broken off"),
    "link/flood": Metric("connections", "while there were far more than actors"),
    "replay/size": Metric("transitions", "may be sampled now"),
    # Where the learner's time went since the record before; they add up to 1.
    "share/learner_act": Metric("1", "acting, where the learner does that too (`Trainer`)"),
    "share/learner_wait": Metric("1", "waiting until the limiter allows a sample"),
    "share/learner_sample": Metric("1", "sampling a batch"),
    "share/learner_opt": Metric("1", "optimising"),
    "share/learner_publish": Metric("1", "taking and handing out model snapshots"),
    "share/learner_record": Metric("1", "making records"),
    "share/learner_eval": Metric("1", "evaluating, where that stops the learner"),
    "share/learner_callback": Metric("1", "calling callbacks"),
    "share/learner_save": Metric("1", "saving checkpoints"),
    "share/learner_other": Metric("1", "the rest of the loop"),
    # Where the actors' time went, mean over actors; they add up to 1.
    "share/actor_env": Metric("1", "stepping environments"),
    "share/actor_policy": Metric("1", "choosing actions"),
    "share/actor_send": Metric("1", "turning steps into segments and sending them"),
    "share/actor_wait": Metric(
        "1", "waiting for credit, for a model, or until it may make its environments anew"
    ),
    "learner/threads": Metric("threads", "that torch computes with in the learner's process"),
    # Milliseconds for one call, mean since the record before; absent if there was none.
    "ms/recv": Metric("ms", "taking messages off the socket, in the receiving thread"),
    "ms/push": Metric("ms", "copying one message into replay, in the receiving thread"),
    "ms/act": Metric("ms", "a step of all environments, in `Trainer`"),
    "ms/sample": Metric("ms", "sampling a batch"),
    "ms/opt": Metric("ms", "an optimisation step"),
    "ms/publish": Metric("ms", "publishing a model (sync)"),
    "ms/eval": Metric("ms", "an evaluation that stopped the learner"),
    "ms/record": Metric("ms", "making a record"),
    "ms/callback": Metric("ms", "calling all callbacks after a turn"),
    "ms/save": Metric("ms", "copying what a checkpoint holds, which stops the learner"),
    # Checkpoints, written in the background; absent until there was one.
    "checkpoint/write_s": Metric("s", "writing the newest checkpoint to disk"),
    "checkpoint/failures": Metric("1", "checkpoints that could not be written, whole run"),
    # Per actor.
    "actor/<id>/env_steps": Metric(
        "env steps", "by this slot over all its restarts, since the run was begun or resumed"
    ),
    "actor/<id>/env_steps_per_s": Metric("env steps/s", "since its report before"),
    "actor/<id>/episodes": Metric(
        "episodes", "ended in this slot, since the run was begun or resumed"
    ),
    "actor/<id>/restarts": Metric(
        "1", "times the slot was refilled after a death, since the run was begun or resumed"
    ),
    "actor/<id>/memory_restarts": Metric(
        "1",
        "times its process was replaced at `supervision.memory_limit_bytes`, without loss, since "
        "the run was begun or resumed; absent until it was",
    ),
    "actor/<id>/model_version": Metric(
        "opt steps",
        "of the model behind its newest experience; `behind` in the live view is how "
        "far the learner is ahead of it",
    ),
    "actor/<id>/env_restarts": Metric("1", "times its environments were made anew, this life"),
    "actor/<id>/dropped": Metric("1", "1 once the run goes on without it"),
    "actor/<id>/trajectories_stored": Metric("trajectories", "or clips of them, if it clips"),
    "actor/<id>/trajectories_discarded": Metric("trajectories", "or clips, that were too short"),
    "actor/<id>/transitions_discarded": Metric("transitions", "in none that was stored"),
    "actor/<id>/<name>": Metric("", "what the policy says of itself, e.g. `exploration_rate`"),
    # The machine.
    "system/cpu_percent": Metric("%", "of one core, by the learner's process"),
    "system/rss_bytes": Metric("bytes", "resident memory of the learner"),
    "system/children_cpu_percent": Metric("%", "of one core, by all processes that it started"),
    "system/children_rss_bytes": Metric("bytes", "their resident memory; shared parts count often"),
    "system/machine_cpu_percent": Metric("%", "of all cores that the learner may use, by anything"),
    "system/throttled_percent": Metric(
        "%", "of the periods of a CPU quota, those in which it was used up; absent without a quota"
    ),
    "system/available_bytes": Metric(
        "bytes", "memory that the machine, or the limit of the run's container, could still give"
    ),
    "system/gpu_percent": Metric("%", "of the time, the first GPU; needs `nvidia-ml-py`"),
    "system/gpu_memory_bytes": Metric("bytes", "of the first GPU, by anything"),
    # The agent and the user.
    "agent/<name>": Metric(
        "",
        "what `Agent.opt` returned: `loss`, `q_mean`, `actor_loss`, ...; `grad_norm`, or "
        "`actor_grad_norm`, `critic_grad_norm`, `value_grad_norm`, is before any clipping",
    ),
    "record/dropped": Metric("records", "not written, because a recorder was too slow"),
}


def describe(name: str) -> Metric | None:
    """Return the line that a recorded name belongs to, or None if it is not in the list."""
    if name in METRICS:
        return METRICS[name]
    for pattern, metric in METRICS.items():
        if "<" in pattern and re.fullmatch(re.sub(r"<\w+>", r"[^/]+", pattern), name):
            return metric
    return None
