"""What limits a run, in one sentence that says what to do. Pure: numbers in, a verdict out.

The evidence is who waits for whom. Actors that wait have more to give than the learner can take;
a learner that waits could take more than actors give; if nobody waits, cores are what is short,
or the two sides fit. Within a side, the phase that takes most of the time decides. What slows both
sides down comes first: restarts, a CPU quota, other programs on the same cores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from asyncrl.core.recorder import Record
from asyncrl.metrics.system import Cores


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What was set that decides a verdict."""

    actors: int = 0
    """Actor processes; 0 if the learner's own process acts, or nobody."""

    envs_per_actor: int | None = None
    samples_per_insert: float | None = None
    """As set; 0 is off. What is not known is None."""

    cores: int = field(default_factory=lambda: Cores().count)
    """That this process may use."""

    quota: float | None = field(default_factory=lambda: Cores().quota_cores)
    """CPU seconds per second that a control group allows; None if that is as much as the cores."""

    @property
    def share(self) -> float:
        """CPU seconds per second that a run may take."""
        return self.cores if self.quota is None else self.quota


_ONCE = 1.0
"""Where each transition is sampled once, it is no matter of credit how many have been."""


def shortfall(asked: float | None, got: float | None) -> str:
    """Say that transitions were sampled much less often than asked for; empty if they were not."""
    if not asked or not got or asked <= _ONCE or got >= asked / 2:
        return ""
    got_text = f"{got:.{0 if got >= 10 else 1}f}"
    return (
        f"asked {asked:g} per insert, got {got_text}: the learner had not caught up with what came "
        "in before its first sample; a longer run comes closer, and so does a lower "
        "limiter.min_size"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was measured, over a whole run or since the record before."""

    setup: Setup
    actor: Mapping[str, float]
    """Shares of the actors' time by phase, as in `share/actor_*`."""

    learner: Mapping[str, float]
    """Shares of the learner's time by phase, as in `share/learner_*`."""

    wall_s: float
    """That shares are of, if of a whole run; start-up is no part of it."""

    opt_steps: float
    start_up_s: float = 0.0
    """Before that, until the first optimisation step."""

    samples_per_insert: float = 0.0
    """As achieved."""

    restarts: int = 0
    cpu_percent: float | None = None
    """Of one core, by the learner's process."""

    machine_cpu_percent: float | None = None
    """Of all cores, by everything."""

    children_cpu_percent: float | None = None
    """Of one core, by the processes that the learner's started."""

    throttled_percent: float | None = None
    """Of the periods of a CPU quota, those in which it was used up."""

    lag_at_insert: float | None = None
    """Mean age of the model that acted, in optimisation steps, when experience is stored."""

    lag_when_sampled: float | None = None
    """The same when it is sampled."""

    @classmethod
    def of_record(cls, values: Record, setup: Setup) -> Facts:
        """Read them from the newest values of a run's metrics."""
        return cls(
            setup=setup,
            actor=_below(values, "share/actor_"),
            learner=_below(values, "share/learner_"),
            wall_s=values.get("wall_s", 0.0),
            opt_steps=values.get("opt_steps", 0.0),
            samples_per_insert=values.get("samples_per_insert", 0.0),
            restarts=round(sum(v for name, v in values.items() if name.endswith("/restarts"))),
            cpu_percent=values.get("system/cpu_percent"),
            machine_cpu_percent=values.get("system/machine_cpu_percent"),
            children_cpu_percent=values.get("system/children_cpu_percent"),
            throttled_percent=values.get("system/throttled_percent"),
            lag_at_insert=values.get("lag/at_insert_mean"),
            lag_when_sampled=values.get("lag/versions_mean"),
        )

    @property
    def actors_wait(self) -> float:
        """The part of their time that actors wait for the learner."""
        return self.actor.get("wait", 0.0)

    @property
    def learner_waits(self) -> float:
        """The part of its time that the learner waits for actors."""
        return self.learner.get("wait", 0.0)

    @property
    def cores_taken(self) -> float | None:
        """How many cores' time the run got."""
        if self.cpu_percent is None or (self.setup.actors and self.children_cpu_percent is None):
            return None
        return (self.cpu_percent + (self.children_cpu_percent or 0.0)) / 100

    @property
    def cores_wanted(self) -> float:
        """How many cores' time the run would take if it got them: that in which nobody waits."""
        at_work = self.setup.actors * (1 - self.actors_wait) + 1 - self.learner_waits
        return min(at_work, self.setup.share)


def _below(values: Record, prefix: str) -> dict[str, float]:
    return {name.removeprefix(prefix): v for name, v in values.items() if name.startswith(prefix)}


Kind = Literal[
    "too-early",
    "unmeasured",
    "restarts",
    "throttled",
    "contended",
    "alone",
    "overhead-bound",
    "overcommitted",
    "limiter-bound",
    "receiver-bound",
    "learner-bound",
    "policy-bound",
    "send-bound",
    "env-bound",
    "actor-bound",
    "cores-bound",
    "unlimited",
    "balanced",
]

_SHORT_S = 2.0
_WAITS = 0.25
"""Who waits for less than this part of the time is not held up."""

_MOST_WAIT = 0.75
_OVERHEAD = 0.2
_OVERHEAD_GOAL = 0.05
_POLICY_GOAL = 0.25
_FULL_PERCENT = 95.0
_SEVERAL_PERCENT = 150.0
_THROTTLED_PERCENT = 25.0
_TAKEN = 0.75
"""Of the cores that a run wants; with less, others take them."""

_OLD_OPT_STEPS = 10.0
_OLD_SHARE = 0.2
"""Of its age when sampled, that experience has when it is stored; with less, replay decides."""

_MANY_RESTARTS = 3
_CALM_S = 60.0
"""Between two restarts of any actors; rarer ones cost nothing that counts."""

_MANY_ENVS = 64
"""From here on, more environments make a step of the policy hardly cheaper for each of them."""

_MOST_TIMES = 100.0
_BOOK_INTERVALS = {
    "eval": (
        "evaluating",
        "evaluate in the background or raise evaluate.interval_opt_steps",
    ),
    "record": ("making records", "raise record.interval_s"),
    "save": ("saving checkpoints", "raise save.interval_opt_steps"),
    "callback": ("calling callbacks", "have them act at larger intervals"),
    "publish": ("publishing models", "raise trainer.sync_interval_opt_steps"),
}
_LEARNER_VERBS = {"opt": "optimises", "sample": "samples batches"}


class Verdict(NamedTuple):
    """What limits the run."""

    kind: Kind
    sentence: str


def judge(facts: Facts) -> Verdict:
    """Say what limits a run, on what evidence, and what would change it."""
    if untold := _untold(facts):
        return untold
    limit = _limit(facts)
    return limit._replace(sentence=limit.sentence + _old(facts))


def _limit(facts: Facts) -> Verdict:
    for rule in (
        _restarts,
        _throttled,
        _contended,
        _alone,
        _overhead_bound,
        _overcommitted,
        _limiter_bound,
        _learner_bound,
        _actors_bound,
        _cores_bound,
    ):
        if verdict := rule(facts):
            return verdict
    return _nobody_waits(facts)


def _untold(facts: Facts) -> Verdict | None:
    if not facts.opt_steps:
        return Verdict("too-early", "too early to tell: no optimisation step has been done yet")
    if not facts.learner and not facts.actor:
        return Verdict(
            "unmeasured",
            "none: nothing was left to train when the run was resumed, so nothing was measured",
        )
    if facts.setup.actors and not facts.actor:
        return Verdict("too-early", "too early to tell: no actor has reported yet")
    if facts.wall_s < _SHORT_S:
        return Verdict(
            "too-early",
            f"too short to tell: it learned for {facts.wall_s:.1f} s "
            f"after {facts.start_up_s:.1f} s of starting up",
        )
    return None


def _old(facts: Facts) -> str:
    """Say that experience is old when it is stored; empty if it is not."""
    stored, sampled = facts.lag_at_insert or 0.0, facts.lag_when_sampled or 0.0
    if stored < _OLD_OPT_STEPS or stored < _OLD_SHARE * sampled:
        return ""
    return (
        f"; experience is {stored:.0f} opt steps old when it is stored, which is much beside "
        f"{max(stored, sampled):.0f} when it is sampled: shorten segment.length, or lower "
        "transport.window or trainer.sync_interval_opt_steps"
    )


def _alone(facts: Facts) -> Verdict | None:
    """Judge a run in one process, where nobody can wait."""
    if facts.setup.actors:
        return None
    act, opt = facts.learner.get("act", 0.0), facts.learner.get("opt", 0.0)
    if not act:
        return Verdict("alone", f"learner only: optimising takes {_pc(opt)} of the time")
    return Verdict(
        "alone",
        f"one process: acting takes {_pc(act)} of its time and optimising {_pc(opt)}; "
        f"an asynchronous run does both at once, up to {1 / max(act, 1 - act):.1f} times as fast",
    )


def _restarts(facts: Facts) -> Verdict | None:
    if facts.restarts < _MANY_RESTARTS or facts.wall_s / facts.restarts > _CALM_S:
        return None
    return Verdict(
        "restarts",
        f"held up by faults: actors were started again {facts.restarts} times, once in "
        f"{facts.wall_s / facts.restarts:.0f} s; the warnings say what ended them, and that comes "
        "before any tuning",
    )


def _throttled(facts: Facts) -> Verdict | None:
    if (facts.throttled_percent or 0.0) < _THROTTLED_PERCENT:
        return None
    quota = "" if facts.setup.quota is None else f" of {facts.setup.quota:.2g} cores"
    return Verdict(
        "throttled",
        f"throttled: the CPU quota{quota} is used up in {facts.throttled_percent:.0f} % of its "
        "periods, and then the run stands still; raise the quota (docker run --cpus, CPUQuota of "
        "systemd, limits.cpu of Kubernetes)",
    )


def _contended(facts: Facts) -> Verdict | None:
    """Judge a run that gets less of the cores than it would take, because they are busy."""
    taken, wanted = facts.cores_taken, facts.cores_wanted
    if taken is None or taken >= _TAKEN * wanted or not _full(facts):
        return None
    return Verdict(
        "contended",
        f"contended: other programs use {_cores(facts)}, and this run gets {taken:.1f} of the "
        f"{wanted:.1f} that it could use; stop them, or start fewer runs at once",
    )


def _overhead_bound(facts: Facts) -> Verdict | None:
    shares = {name: facts.learner.get(name, 0.0) for name in _BOOK_INTERVALS}
    total = sum(shares.values())
    if total < _OVERHEAD:
        return None
    largest = max(shares, key=lambda name: shares[name])
    doing, advice = _BOOK_INTERVALS[largest]
    share = shares[largest]
    times = share * (1 - _OVERHEAD_GOAL) / (_OVERHEAD_GOAL * max(1 - share, 1e-9))
    return Verdict(
        "overhead-bound",
        f"overhead-bound: {doing} takes {_pc(share)} of the learner's time; {advice}, "
        f"to {math.ceil(min(times, _MOST_TIMES))} times what it is for {_pc(_OVERHEAD_GOAL)}",
    )


def _overcommitted(facts: Facts) -> Verdict | None:
    setup = facts.setup
    if setup.actors <= setup.cores or not _full(facts) or _fills_idle_cores(facts):
        return None
    return Verdict(
        "overcommitted",
        f"overcommitted: {setup.actors} actors and the learner share {_cores(facts)}; "
        f"{_actors(max(1, setup.cores - 1))} would leave the learner one",
    )


def _limiter_bound(facts: Facts) -> Verdict | None:
    if min(facts.actors_wait, facts.learner_waits) < _WAITS:
        return None
    return Verdict(
        "limiter-bound",
        f"limiter-bound: both sides wait for each other in turns, actors {_pc(facts.actors_wait)} "
        f"of their time and the learner {_pc(facts.learner_waits)} of its; shorten "
        "segment.length, or widen limiter.band_transitions",
    )


def _learner_bound(facts: Facts) -> Verdict | None:
    setup, waits = facts.setup, facts.actors_wait
    if waits < _WAITS:
        return None
    if setup.samples_per_insert == 0:
        return Verdict(
            "receiver-bound",
            f"receiver-bound: actors wait {_pc(waits)} of their time though samples per insert "
            "are not limited, as messages are not taken in fast enough; lengthen segment.length",
        )
    busiest = max(_LEARNER_VERBS, key=lambda name: facts.learner.get(name, 0.0))
    everything = f", with all {setup.cores} cores," if _fills_idle_cores(facts) else ""
    busy = facts.learner.get(busiest, 0.0)
    evidence = (
        f"learner-bound: actors wait {_pc(waits)} of their time for credit, while the "
        f"learner{everything} {_LEARNER_VERBS[busiest]} {_pc(busy)} of its"
    )
    ratio, working = setup.samples_per_insert, round(setup.actors * (1 - waits), 3)
    # A learner that is much too slow is not to sample much less: that would be another algorithm.
    to = f" from {ratio:g} to {ratio * (1 - waits):.2g}" if ratio and waits <= _MOST_WAIT else ""
    lower = f"lower limiter.samples_per_insert{to} for more environment steps"
    enough = math.ceil(working)
    advice = "speed the learner up" if enough == setup.actors else f"{_actors(enough)} would do"
    crowded = _full(facts) and working + 1 > setup.cores and setup.actors > 1
    if crowded and (facts.cpu_percent or 100.0) < _FULL_PERCENT:
        gets = f"{facts.cpu_percent:.0f} % of a core"
        advice = f"{_actors(setup.actors - 1)} would leave it more than {gets}"
    return Verdict("learner-bound", f"{evidence}; {advice}, or {lower}")


def _actors_bound(facts: Facts) -> Verdict | None:
    """Judge a learner that waits by what its actors do meanwhile."""
    if facts.learner_waits < _WAITS:
        return None
    busy = max(1 - facts.actors_wait, 1e-9)
    policy, env, send = (facts.actor.get(name, 0.0) / busy for name in ("policy", "env", "send"))
    waits = f"the learner waits {_pc(facts.learner_waits)} of its time"
    if policy >= 0.4 and policy >= max(env, send):
        evidence = (
            f"policy-bound: {waits}, and actors choose actions {_pc(policy * busy)} of theirs"
        )
        return Verdict("policy-bound", f"{evidence}; {_wider_batches(facts, policy)}")
    if send >= 0.35 and send >= env:
        return Verdict(
            "send-bound",
            f"send-bound: {waits}, and actors pack and send {_pc(send * busy)} of theirs; "
            "lengthen segment.length, for fewer and larger messages",
        )
    if env >= 0.5:
        evidence = f"env-bound: {waits}, and actors step environments {_pc(env * busy)} of theirs"
        return Verdict("env-bound", f"{evidence}; {_more_actors(facts)}")
    evidence = (
        f"actor-bound: {waits}, and actors are busy {_pc(busy)} of theirs (environments "
        f"{_pc(env * busy)}, actions {_pc(policy * busy)}, sending {_pc(send * busy)})"
    )
    return Verdict("actor-bound", f"{evidence}; {_more_actors(facts)}")


def _wider_batches(facts: Facts, policy: float) -> str:
    """Advise so many environments that choosing actions takes a quarter of the time."""
    now = facts.setup.envs_per_actor
    if now is not None and now >= _MANY_ENVS:
        return f"with {now} environments each, a smaller network helps, or else " + _more_actors(
            facts
        )
    wanted = policy * (1 - _POLICY_GOAL) / (_POLICY_GOAL * max(1 - policy, 1e-9))
    times = 2 ** math.ceil(math.log2(max(min(wanted, _MANY_ENVS), 2.0)))
    if now is None:
        return f"give each actor {times} times as many environments"
    return f"give each actor {min(now * times, _MANY_ENVS)} environments instead of {now}"


def _more_actors(facts: Facts) -> str:
    """Advise as many actors as keep the learner busy, if there are cores for them."""
    setup, idle = facts.setup, 1 - facts.learner_waits
    ratio = setup.samples_per_insert
    wanted = math.ceil(round(setup.actors / max(idle, 0.05), 3))
    if facts.machine_cpu_percent is None:
        room = setup.cores - setup.actors - 1
    else:
        room = int(setup.cores * (1 - facts.machine_cpu_percent / 100) + 0.25)
    if room > 0:
        return f"{_actors(min(wanted, setup.actors + room))} would use the cores that are idle"
    learn = (
        f", or raise limiter.samples_per_insert from {ratio:g} to {ratio / max(idle, 0.05):.2g}"
        if ratio
        else ""
    )
    return f"{_cores(facts)} have no room for more, so step faster (native vectorization){learn}"


def _cores_bound(facts: Facts) -> Verdict | None:
    setup = facts.setup
    if setup.actors + 1 <= setup.cores or not _full(facts):
        return None
    return Verdict(
        "cores-bound",
        f"cores-bound: {_actors(setup.actors)} and the learner share {_cores(facts)}, and nobody "
        f"waits much (actors {_pc(facts.actors_wait)} of their time, the learner "
        f"{_pc(facts.learner_waits)}); only more cores or cheaper steps make it faster",
    )


def _nobody_waits(facts: Facts) -> Verdict:
    evidence = (
        f"actors wait {_pc(facts.actors_wait)} of their time, "
        f"the learner {_pc(facts.learner_waits)} of its"
    )
    if facts.setup.samples_per_insert == 0:
        return Verdict(
            "unlimited",
            f"unlimited: {evidence}, as samples per insert are not limited; each transition was "
            f"sampled {facts.samples_per_insert:.2g} times",
        )
    return Verdict("balanced", f"balanced: {evidence}, so both sides are used")


def _fills_idle_cores(facts: Facts) -> bool:
    """Whether the cores are busy only because the learner computes on those that were idle."""
    return _full(facts) and (facts.cpu_percent or 0.0) >= _SEVERAL_PERCENT


def _full(facts: Facts) -> bool:
    return (facts.machine_cpu_percent or 0.0) >= _FULL_PERCENT


def _actors(n: int) -> str:
    return f"{n} actor" if n == 1 else f"{n} actors"


def _cores(facts: Facts) -> str:
    percent, n = facts.machine_cpu_percent, facts.setup.cores
    busy = "" if percent is None else f" ({percent:.0f} % busy)"
    return f"the {n} cores{busy}" if n > 1 else f"one core{busy}"


def _pc(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")
