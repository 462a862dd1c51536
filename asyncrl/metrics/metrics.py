"""The list of all recorded metrics: names, units, meaning. Computes nothing.

A name with `<id>` or `<name>` stands for one metric per actor or rank, or per metric of the agent
or of custom code. A test compares this list with what runs record.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple


class Metric(NamedTuple):
    """One line of the list."""

    unit: str
    meaning: str


METRICS: dict[str, Metric] = {
    # Position of the run; every record contains these four.
    "env_steps": Metric("env steps", "steps of all training environments so far"),
    "opt_steps": Metric("opt steps", "optimisation steps so far"),
    "wall_s": Metric("s", "wall-clock time since training began"),
    "train_s": Metric("s", "the same, without the time before the first step and after the last"),
    "time": Metric(
        "s", "clock time of the record, in seconds since 1970 (UTC); in `metrics.jsonl` only"
    ),
    # Rates over the time since the last record.
    "fps": Metric("env steps/s", "environment steps of all actors together"),
    "opt_steps_per_sec": Metric("opt steps/s", "optimisation steps"),
    "samples_total": Metric("transitions", "transitions stored in replay so far"),
    "samples_per_sec": Metric("transitions/s", "transitions stored in replay"),
    "samples_per_opt_steps": Metric(
        "transitions", "transitions stored per optimisation step, whole run"
    ),
    "samples_per_insert": Metric(
        "1", "how often each transition in replay was sampled, on average, whole run"
    ),
    "actors": Metric("actors", "target number, which `set_actors` changes"),
    # Returns.
    "episodes": Metric("episodes", "training episodes ended so far"),
    "episode/return_mean": Metric(
        "reward", "mean return of the training episodes since the last record"
    ),
    "episode/return_min": Metric("reward", "lowest return of them"),
    "episode/return_max": Metric("reward", "highest return of them"),
    "episode/return_std": Metric("reward", "standard deviation of their returns"),
    "episode/length_mean": Metric("env steps", "their length"),
    "episode/success_rate": Metric(
        "1", "share that succeeded, where infos report `is_success` or `success`"
    ),
    "info/<name>": Metric("", "mean of a number of the info, over the same episodes; see env.info"),
    "eval_reward": Metric(
        "reward", "score of an evaluation: mean return, usually of the greedy policy"
    ),
    "eval/return_min": Metric("reward", "lowest return of its episodes"),
    "eval/return_max": Metric("reward", "highest return of its episodes"),
    "eval/return_std": Metric("reward", "standard deviation of the returns of its episodes"),
    "eval/length_mean": Metric("env steps", "mean length of its episodes"),
    "eval/success_rate": Metric("1", "share of its episodes that succeeded"),
    "eval/info/<name>": Metric("", "mean of a number of the info, over its episodes"),
    "eval/model_version": Metric("opt steps", "version of the evaluated model"),
    "eval/cpu_s": Metric("s", "CPU time that it took in its own process"),
    "eval/best": Metric("reward", "best score so far, if it selects the best model"),
    # Age of the policies behind the batches sampled since the last record. An actor's current lag
    # is `opt_steps` minus its `actor/<id>/model_version`.
    "lag/versions_mean": Metric(
        "opt steps", "age of sampled data: learner's opt steps minus those of the model that acted"
    ),
    "lag/versions_min": Metric("opt steps", "the newest in these batches"),
    "lag/versions_max": Metric("opt steps", "the oldest in these batches"),
    "lag/at_insert_mean": Metric(
        "opt steps",
        "age of experience when it is stored: learner's opt steps minus those of the model that "
        "acted",
    ),
    "lag/at_insert_max": Metric("opt steps", "the oldest that was stored"),
    "lag/seconds_mean": Metric(
        "s",
        "age of sampled data: seconds since the model that acted was published, of each eighth row",
    ),
    "lag/seconds_max": Metric("s", "the oldest in these batches"),
    "lag/histogram/<from>": Metric(
        "transitions",
        "sampled since the run was started or resumed, of an age of at least this many opt steps, "
        "and less than the next bound: 0, 1, 2, 4, 8 and so on; of several learners, by rank 0",
    ),
    # The ledger: produced = stored + dropped + lost + in_flight, in transitions, whole run.
    "rank/<id>/stored": Metric(
        "transitions", "of several learners, inserted into this one's replay"
    ),
    "rank/<id>/replay_size": Metric("transitions", "in its replay"),
    "rank/<id>/steps_without_batch": Metric("opt steps", "steps to which it contributed no rows"),
    "ledger/produced": Metric(
        "transitions", "produced by actors, including those that have exited"
    ),
    "ledger/stored": Metric("transitions", "inserted into replay"),
    "ledger/dropped": Metric(
        "transitions", "received and not stored: 0 unless proxy.overflow=drop"
    ),
    "ledger/lost": Metric("transitions", "produced by actors that died before sending them"),
    "ledger/in_flight": Metric("transitions", "on their way"),
    # Messages and connections that were rejected, whole run; absent while there are none.
    "link/refused": Metric("messages", "from peers that were refused, or may not send them"),
    "link/stale": Metric(
        "messages", "from an earlier incarnation of an actor, after it was replaced"
    ),
    "link/unknown": Metric("messages", "from peers that have not introduced themselves"),
    "link/after_gap": Metric("messages", "after lost ones; their actor is started again"),
    "link/undelivered": Metric("messages", "to actors that had exited, or did not read them"),
    "link/malformed": Metric(
        "messages", "that could not be decoded; their senders were disconnected"
    ),
    "link/foreign_run": Metric("messages", "of another run"),
    "link/foreign_protocol": Metric("messages", "of another version of asyncrl"),
    "link/impostor": Metric("messages", "under the name of another actor"),
    "link/fenced": Metric("messages", "of actors that were lost with their host, not counted"),
    "link/handshake_failed": Metric("connections", "without the right key"),
    "link/handshake_aborted": Metric(
        "connections", "that ended before a key was shown: their process died, or was no actor"
    ),
    "link/flood": Metric("connections", "while there were far more connections than actors"),
    # Of runs whose actors are on hosts that join.
    "hosts/joined": Metric("hosts", "that are there now"),
    "hosts/room": Metric("actors", "that these hosts have room for"),
    "hosts/actors": Metric("actors", "that run on them now"),
    "hosts/lost": Metric(
        "hosts", "that have failed, or were not heard for too long, and have not joined again"
    ),
    "hosts/left": Metric("hosts", "that have left on request, so far"),
    "hosts/traffic_mb": Metric(
        "MB", "received from their actors, and of models sent to them, so far"
    ),
    "hosts/round_trip_ms": Metric("ms", "of a message to the farthest host; 0 while unknown"),
    "replay/size": Metric("transitions", "transitions that can be sampled now"),
    # The learner's time since the last record; the shares add up to 1.
    "share/learner_act": Metric("1", "acting, in synchronous mode"),
    "share/learner_ranks": Metric("1", "waiting for the other learners before a step"),
    "share/learner_wait": Metric("1", "waiting until the limiter allows a sample"),
    "share/learner_sample": Metric("1", "sampling a batch"),
    "share/learner_opt": Metric("1", "optimising"),
    "share/learner_publish": Metric("1", "copying and publishing models"),
    "share/learner_record": Metric("1", "making records"),
    "share/learner_eval": Metric("1", "evaluating in the learner's process"),
    "share/learner_callback": Metric("1", "calling callbacks"),
    "share/learner_save": Metric("1", "saving checkpoints"),
    "share/learner_other": Metric("1", "the rest of the loop"),
    # Since the run began or was resumed.
    "share/evaluation": Metric("1", "part of the cores' time that evaluations have taken"),
    # The actors' time, mean over actors; the shares add up to 1.
    "share/actor_env": Metric("1", "stepping environments"),
    "share/actor_sleep": Metric(
        "1", "environments that sleep, or wait for a device, a network or another process"
    ),
    "share/actor_policy": Metric("1", "choosing actions"),
    "share/actor_send": Metric("1", "turning steps into segments and sending them"),
    "share/actor_wait": Metric(
        "1", "waiting for credit, for a model, or for the backoff before environments are rebuilt"
    ),
    "learner/threads": Metric("threads", "that torch computes with in the learner's process"),
    # Milliseconds per call, mean since the last record; absent without a call.
    "ms/recv": Metric("ms", "reading messages from the socket, in the receiving thread"),
    "ms/push": Metric("ms", "copying one message into replay, in the receiving thread"),
    "ms/act": Metric("ms", "a step of all environments, in synchronous mode"),
    "ms/sample": Metric("ms", "sampling a batch"),
    "ms/opt": Metric("ms", "an optimisation step"),
    "ms/publish": Metric("ms", "publishing a model"),
    "ms/eval": Metric("ms", "an evaluation in the learner's process"),
    "ms/record": Metric("ms", "making a record"),
    "ms/callback": Metric("ms", "calling all callbacks after a training step"),
    "ms/save": Metric("ms", "copying the state for a checkpoint, while learning waits"),
    # Checkpoints, written in the background; absent before the first one.
    "checkpoint/write_s": Metric("s", "writing the newest checkpoint to disk"),
    "checkpoint/failures": Metric("1", "checkpoints that could not be written, whole run"),
    # Per actor.
    "actor/<id>/env_steps": Metric(
        "env steps", "of this slot over all restarts, since the run was started or resumed"
    ),
    "actor/<id>/env_steps_per_s": Metric("env steps/s", "since its last report"),
    "actor/<id>/episodes": Metric(
        "episodes", "that ended in this slot since the run was started or resumed"
    ),
    "actor/<id>/restarts": Metric(
        "1", "restarts of this slot after failures, since the run was started or resumed"
    ),
    "actor/<id>/memory_restarts": Metric(
        "1",
        "restarts at `supervision.memory_limit_bytes`, without loss, since the run was started or "
        "resumed; absent before the first one",
    ),
    "actor/<id>/model_version": Metric(
        "opt steps",
        "version of the model behind its newest experience; `behind` in the live view is how far "
        "the learner is ahead of it",
    ),
    "actor/<id>/env_restarts": Metric(
        "1", "times that this incarnation has rebuilt its environments"
    ),
    "actor/<id>/left": Metric("1", "1 while it has left on request, 0 once it is back"),
    "actor/<id>/dropped": Metric("1", "1 after the run continues without it"),
    "actor/<id>/trajectories_stored": Metric(
        "trajectories", "stored, or clips of them with `clip_length`"
    ),
    "actor/<id>/trajectories_discarded": Metric(
        "trajectories", "discarded, or clips of them, because they were too short"
    ),
    "actor/<id>/transitions_discarded": Metric(
        "transitions", "in discarded trajectories or outside all clips"
    ),
    "actor/<id>/<name>": Metric("", "metrics of the policy, e.g. `exploration_rate`"),
    # The machine.
    "system/cpu_percent": Metric("%", "CPU use of the learner's process, of one core"),
    "system/rss_bytes": Metric("bytes", "resident memory of the learner"),
    "system/children_cpu_percent": Metric(
        "%", "CPU use of all processes that it has started, of one core"
    ),
    "system/children_rss_bytes": Metric(
        "bytes", "their resident memory; shared memory counts once per process"
    ),
    "system/machine_cpu_percent": Metric(
        "%", "CPU use of all programs, of all cores that the learner may use"
    ),
    "system/throttled_percent": Metric(
        "%", "periods of a CPU quota in which it was used up; absent without a quota"
    ),
    "system/available_bytes": Metric(
        "bytes", "memory left on the machine, or within the limit of the run's container"
    ),
    "system/gpu_percent": Metric("%", "time in which the first GPU was busy; needs `nvidia-ml-py`"),
    "system/gpu_memory_bytes": Metric("bytes", "memory of the first GPU that all programs use"),
    # Metrics of the agent and of custom code.
    "agent/count": Metric(
        "opt steps", "since the last record; the numbers of the agent are means over them"
    ),
    "agent/<name>_min": Metric("", "lowest value of `agent/<name>`; absent if all are equal"),
    "agent/<name>_max": Metric("", "highest value of `agent/<name>`; absent if all are equal"),
    "agent/<name>": Metric(
        "",
        "mean of what `Agent.opt` returned: `loss`, `q_mean`, `actor_loss`, ...; `grad_norm`, or "
        "`actor_grad_norm`, `critic_grad_norm`, `value_grad_norm`, is the gradient norm before "
        "clipping; `learning_rate`, with the same prefixes; `entropy`, with its weight `alpha` or "
        "`entropy_weight`; `clipped_share` is the probability in C51's targets beyond its atoms",
    ),
    "record/dropped": Metric("records", "not written, because a recorder was too slow"),
}


@lru_cache(maxsize=4096)
def describe(name: str) -> Metric | None:
    """Return the entry of a recorded name, or None if it is not in the list."""
    if name in METRICS:
        return METRICS[name]
    for pattern, metric in METRICS.items():
        if "<" in pattern and re.fullmatch(re.sub(r"<\w+>", r"[^/]+", pattern), name):
            return metric
    return None
