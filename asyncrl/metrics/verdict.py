"""What limits a run, in one sentence that says what to do. Pure: numbers in, a verdict out.

The evidence is which side waits for which. If actors wait, they could do more than the learner can
take. If the learner waits, it could take more than the actors send. If neither waits, cores are
scarce, or the two sides are balanced. Within a side, the phase with the largest share of the time
decides. What slows down both sides comes first: restarts, a CPU quota, other programs on the same
cores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from asyncrl.core.recorder import Record
from asyncrl.core.types import MOST_ACTORS
from asyncrl.metrics.system import Cores


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The settings that a verdict depends on."""

    actors: int = 0
    """Actor processes; 0 if the learner's own process acts, or there are no environments."""

    envs_per_actor: int | None = None
    samples_per_insert: float | None = None
    """As set; 0 is off. None if unknown."""

    cores: int = field(default_factory=lambda: Cores().count)
    """Cores that this process may use."""

    quota: float | None = field(default_factory=lambda: Cores().quota_cores)
    """CPU seconds per second that a control group allows; None if that is not less than the
    cores."""

    elsewhere: bool = False
    """Whether actors run on hosts that join, so that the cores here are not theirs."""

    most_actors: int = MOST_ACTORS
    """To how many actors the active run may grow."""

    learners: int = 1
    """Learners of the run; the other numbers are those of one of them."""

    served: bool = False
    """Whether the actors' networks are computed in batches of all actors."""

    if_cheap: str = ""
    """Preset that suits such environments if a step is cheap; two if only a trial shows which of
    them does; empty if unknown."""

    @property
    def share(self) -> float:
        """CPU seconds per second that a run may use."""
        return self.cores if self.quota is None else self.quota


_ONCE = 1.0
"""If each transition is sampled once, the achieved ratio depends on no backlog."""


def shortfall(asked: float | None, got: float | None) -> str:
    """Say that transitions were sampled much less often than set; empty if they were not."""
    if not asked or not got or asked <= _ONCE or got >= asked / 2:
        return ""
    got_text = f"{got:.{0 if got >= 10 else 1}f}"
    return (
        f"asked {asked:g} per insert, got {got_text}: the learner had not caught up with what "
        "arrived before its first sample; a longer run or a lower limiter.min_size comes closer"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was measured, over a whole run or since the last record."""

    setup: Setup
    actor: Mapping[str, float]
    """Shares of the actors' time by phase, as in `share/actor_*`."""

    learner: Mapping[str, float]
    """Shares of the learner's time by phase, as in `share/learner_*`."""

    wall_s: float
    """Duration that the shares refer to, if of a whole run, without start-up."""

    opt_steps: float
    start_up_s: float = 0.0
    """Time before that, until the first optimisation step."""

    samples_per_insert: float = 0.0
    """As achieved."""

    evaluation: float = 0.0
    """Part of the cores' time that evaluations have taken."""

    restarts: int = 0
    cpu_percent: float | None = None
    """CPU use of the learner's process, of one core."""

    machine_cpu_percent: float | None = None
    """CPU use of all programs, of all cores."""

    children_cpu_percent: float | None = None
    """CPU use of the processes that the learner's has started, of one core."""

    throttled_percent: float | None = None
    """Share of the periods of a CPU quota in which it was used up."""

    host_actors: float | None = None
    """Actors that run on hosts now, which may be fewer than are wanted."""

    lag_at_insert: float | None = None
    """Mean age of the model that acted, in optimisation steps, when experience is stored."""

    lag_when_sampled: float | None = None
    """The same when it is sampled."""

    @classmethod
    def of_record(cls, values: Record, setup: Setup) -> Facts:
        """Read the facts from the newest values of a run's metrics."""
        return cls(
            setup=setup,
            actor=_below(values, "share/actor_"),
            learner=_below(values, "share/learner_"),
            wall_s=values.get("wall_s", 0.0),
            opt_steps=values.get("opt_steps", 0.0),
            samples_per_insert=values.get("samples_per_insert", 0.0),
            evaluation=values.get("share/evaluation", 0.0),
            restarts=round(sum(v for name, v in values.items() if name.endswith("/restarts"))),
            cpu_percent=values.get("system/cpu_percent"),
            machine_cpu_percent=values.get("system/machine_cpu_percent"),
            children_cpu_percent=values.get("system/children_cpu_percent"),
            throttled_percent=values.get("system/throttled_percent"),
            host_actors=values.get("hosts/actors"),
            lag_at_insert=values.get("lag/at_insert_mean"),
            lag_when_sampled=values.get("lag/versions_mean"),
        )

    @property
    def actors_wait(self) -> float:
        """Share of their time in which actors wait for the learner."""
        return self.actor.get("wait", 0.0)

    @property
    def learner_waits(self) -> float:
        """Share of its time in which the learner waits for actors."""
        return self.learner.get("wait", 0.0)

    @property
    def asleep(self) -> float:
        """Share of their time in which actors' environments neither compute nor wait for a core."""
        return self.actor.get("sleep", 0.0)

    @property
    def cores_per_actor(self) -> float:
        """Number of cores that keep an actor busy, with the processes that it has started."""
        used = (self.children_cpu_percent or 0.0) / 100 / max(self.setup.actors, 1)
        return max(1 - self.asleep, min(used, 1.0), _LEAST_CORES)

    @property
    def cores_taken(self) -> float | None:
        """Number of cores whose time the run got."""
        if self.cpu_percent is None or (self.setup.actors and self.children_cpu_percent is None):
            return None
        return (self.cpu_percent + (self.children_cpu_percent or 0.0)) / 100

    @property
    def cores_wanted(self) -> float:
        """Number of cores that the run could use: the time in which no side waits."""
        at_work = self.setup.actors * (1 - self.actors_wait - self.asleep) + 1 - self.learner_waits
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
"""A side that waits for less than this share of the time is not held up."""

_LEAST_CORES = 0.02
"""Lower limit for one actor, which sends and stores also while environments mostly sleep."""

_MOST_WAIT = 0.75
_OVERHEAD = 0.2
_OVERHEAD_GOAL = 0.05
_POLICY_GOAL = 0.25
_FULL_PERCENT = 95.0
_SEVERAL_PERCENT = 150.0
_THROTTLED_PERCENT = 25.0
_TAKEN = 0.75
"""Share of the cores that a run could use; below it other programs take them."""

_OLD_OPT_STEPS = 10.0
_OLD_SHARE = 0.2
"""Of its age when sampled, that experience has when it is stored; with less, replay decides."""

_MANY_RESTARTS = 3
_CALM_S = 60.0
"""Seconds between two restarts of any actors; rarer restarts cost little."""

_MANY_ENVS = 64
"""Above it, more environments hardly lower the cost of the policy per environment."""

_MOST_TIMES = 100.0
_SERVICES = {
    "eval": ("evaluating", "raise evaluate.interval_opt_steps"),
    "record": ("making records", "raise record.interval_s"),
    "save": ("saving checkpoints", "raise save.interval_opt_steps and save.interval_s"),
    "callback": ("calling callbacks", "call them less often"),
    "publish": ("publishing models", "raise trainer.sync_interval_opt_steps"),
}
_LEARNER_VERBS = {"opt": "optimises", "sample": "samples batches"}


class Verdict(NamedTuple):
    """What limits the run."""

    kind: Kind
    sentence: str


def judge(facts: Facts) -> Verdict:
    """Return what limits a run, the evidence, and what would change it."""
    if unmeasured := _unmeasured(facts):
        return unmeasured
    limit, several = _limit(facts), facts.setup.learners
    whose = f"of rank 0 of {several}: " if several > 1 else ""
    return limit._replace(sentence=whose + limit.sentence + _stale(facts))


def _limit(facts: Facts) -> Verdict:
    for rule in (
        _restarts,
        _throttled,
        _contended,
        _overhead_bound,
        _evaluation_bound,
        _one_process,
        _overcommitted,
        _limiter_bound,
        _learner_bound,
        _actors_bound,
        _cores_bound,
    ):
        if verdict := rule(facts):
            return verdict
    return _balanced(facts)


def _unmeasured(facts: Facts) -> Verdict | None:
    if not facts.opt_steps:
        return Verdict("too-early", "too early to say: no optimisation step has been done yet")
    if not facts.learner and not facts.actor:
        return Verdict(
            "unmeasured",
            "none: nothing was left to train when the run was resumed, so nothing was measured",
        )
    if facts.setup.actors and not facts.actor:
        return Verdict("too-early", "too early to say: no actor has reported yet")
    if facts.wall_s < _SHORT_S:
        return Verdict(
            "too-early",
            f"too short to say: it learned for {facts.wall_s:.1f} s after {facts.start_up_s:.1f} s "
            "of start-up",
        )
    return None


def _stale(facts: Facts) -> str:
    """Say that experience is old when it is stored; empty if it is not."""
    stored, sampled = facts.lag_at_insert or 0.0, facts.lag_when_sampled or 0.0
    if stored < _OLD_OPT_STEPS or stored < _OLD_SHARE * sampled:
        return ""
    return (
        f"; experience is {stored:.0f} opt steps old when it is stored, which is much beside "
        f"{max(stored, sampled):.0f} when it is sampled: shorten segment.length, or lower "
        "transport.window or trainer.sync_interval_opt_steps"
    )


def _one_process(facts: Facts) -> Verdict | None:
    """Judge a run in one process, where no side can wait."""
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
        f"held up by faults: actors were restarted {facts.restarts} times, once in "
        f"{facts.wall_s / facts.restarts:.0f} s; fix what the warnings report before any tuning",
    )


def _throttled(facts: Facts) -> Verdict | None:
    if (facts.throttled_percent or 0.0) < _THROTTLED_PERCENT:
        return None
    quota = "" if facts.setup.quota is None else f" of {facts.setup.quota:.2g} cores"
    return Verdict(
        "throttled",
        f"throttled: the CPU quota{quota} is used up in {facts.throttled_percent:.0f} % of its "
        "periods, and then the run pauses; raise the quota (docker run --cpus, CPUQuota of "
        "systemd, limits.cpu of Kubernetes)",
    )


def _contended(facts: Facts) -> Verdict | None:
    """Judge a run that gets less CPU time than it could use, because the cores are busy."""
    taken, wanted = facts.cores_taken, facts.cores_wanted
    enough = min(_TAKEN * wanted, wanted - _WAITS)
    if facts.setup.elsewhere or taken is None or taken >= enough or not _full(facts):
        return None
    return Verdict(
        "contended",
        f"contended: other programs use {_cores(facts)}, and this run gets {taken:.1f} of the "
        f"{wanted:.1f} that it could use; stop them, or run fewer trainings at once",
    )


def _overhead_bound(facts: Facts) -> Verdict | None:
    shares = {name: facts.learner.get(name, 0.0) for name in _SERVICES}
    total = sum(shares.values())
    if total < _OVERHEAD:
        return None
    largest = max(shares, key=lambda name: shares[name])
    doing, advice = _SERVICES[largest]
    share = shares[largest]
    times = share * (1 - _OVERHEAD_GOAL) / (_OVERHEAD_GOAL * max(1 - share, 1e-9))
    return Verdict(
        "overhead-bound",
        f"overhead-bound: {doing} takes {_pc(share)} of the learner's time; {advice}, to "
        f"{math.ceil(min(times, _MOST_TIMES))} times the current value for {_pc(_OVERHEAD_GOAL)}",
    )


def _evaluation_bound(facts: Facts) -> Verdict | None:
    """Judge evaluations in their own process, which may be too long for a short run."""
    if facts.evaluation < _OVERHEAD:
        return None
    return Verdict(
        "overhead-bound",
        f"overhead-bound: evaluations have taken {_pc(facts.evaluation)} of the cores' time; lower "
        "evaluate.play.episodes or evaluate.play.max_episode_steps, or call evaluate() less often",
    )


def _overcommitted(facts: Facts) -> Verdict | None:
    setup = facts.setup
    if (
        setup.elsewhere
        or setup.actors * facts.cores_per_actor <= setup.cores
        or not _full(facts)
        or _fills_idle_cores(facts)
    ):
        return None
    return Verdict(
        "overcommitted",
        f"overcommitted: {setup.actors} actors and the learner share {_cores(facts)}; "
        f"{_actors(max(1, int((setup.cores - 1) / facts.cores_per_actor)))} would leave the "
        "learner one",
    )


def _limiter_bound(facts: Facts) -> Verdict | None:
    if min(facts.actors_wait, facts.learner_waits) < _WAITS:
        return None
    return Verdict(
        "limiter-bound",
        "limiter-bound: the two sides wait for each other alternately, actors "
        f"{_pc(facts.actors_wait)} of their time and the learner {_pc(facts.learner_waits)} of "
        "its; shorten segment.length, or widen limiter.band_transitions",
    )


def _learner_bound(facts: Facts) -> Verdict | None:
    setup, waits = facts.setup, facts.actors_wait
    if waits < _WAITS:
        return None
    if setup.samples_per_insert == 0:
        return Verdict(
            "receiver-bound",
            f"receiver-bound: actors wait {_pc(waits)} of their time although samples per insert "
            "are not limited, because messages are not received fast enough; lengthen "
            "segment.length",
        )
    busiest = max(_LEARNER_VERBS, key=lambda name: facts.learner.get(name, 0.0))
    everything = f", with all {setup.cores} cores," if _fills_idle_cores(facts) else ""
    busy = facts.learner.get(busiest, 0.0)
    evidence = (
        f"learner-bound: actors wait {_pc(waits)} of their time for credit, while the "
        f"learner{everything} {_LEARNER_VERBS[busiest]} {_pc(busy)} of its"
    )
    ratio, working = setup.samples_per_insert, round(setup.actors * (1 - waits), 3)
    # Do not advise a much lower ratio to a learner that is much too slow: it changes the algorithm.
    to = f" from {ratio:g} to {ratio * (1 - waits):.2g}" if ratio and waits <= _MOST_WAIT else ""
    lower = f"lower limiter.samples_per_insert{to} for more environment steps"
    enough = math.ceil(working)
    advice = "speed up the learner" if enough == setup.actors else f"{_actors(enough)} would do"
    asleep = setup.actors * facts.asleep
    crowded = _full(facts) and working - asleep + 1 > setup.cores and setup.actors > 1
    if crowded and (facts.cpu_percent or 100.0) < _FULL_PERCENT:
        gets = f"{facts.cpu_percent:.0f} % of a core"
        advice = f"{_actors(setup.actors - 1)} would leave it more than {gets}"
    other = ""
    if setup.if_cheap.startswith("ppo") and ratio and ratio > _ONCE and waits > _MOST_WAIT:
        other = f". Steps are cheap here: {setup.if_cheap} would use the cores that wait"
    return Verdict("learner-bound", f"{evidence}; {advice}, or {lower}{other}")


def _actors_bound(facts: Facts) -> Verdict | None:
    """Judge a learner that waits by what its actors do meanwhile."""
    if facts.learner_waits < _WAITS:
        return None
    busy = max(1 - facts.actors_wait, 1e-9)
    policy, env, send = (facts.actor.get(name, 0.0) / busy for name in ("policy", "env", "send"))
    env += facts.asleep / busy
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
        evidence += f", {_pc(facts.asleep)} asleep" if facts.asleep else ""
        return Verdict("env-bound", f"{evidence}; {_more_actors(facts)}")
    evidence = (
        f"actor-bound: {waits}, and actors are busy {_pc(busy)} of theirs (environments "
        f"{_pc(env * busy)}, actions {_pc(policy * busy)}, sending {_pc(send * busy)})"
    )
    return Verdict("actor-bound", f"{evidence}; {_more_actors(facts)}")


def _wider_batches(facts: Facts, policy: float) -> str:
    """Advise a number of environments with which choosing actions takes a quarter of the time."""
    now = facts.setup.envs_per_actor
    if now is not None and now >= _MANY_ENVS:
        served = "" if facts.setup.served else " or inference=server"
        return f"with {now} environments each, a smaller network{served} helps, or else " + (
            _more_actors(facts)
        )
    wanted = policy * (1 - _POLICY_GOAL) / (_POLICY_GOAL * max(1 - policy, 1e-9))
    times = 2 ** math.ceil(math.log2(max(min(wanted, _MANY_ENVS), 2.0)))
    if now is None:
        return f"give each actor {times} times as many environments"
    return f"give each actor {min(now * times, _MANY_ENVS)} environments instead of {now}"


def _more_actors(facts: Facts) -> str:
    """Advise the number of actors that keeps the learner busy, if there are cores for them."""
    setup, idle = facts.setup, 1 - facts.learner_waits
    ratio = setup.samples_per_insert
    now = facts.host_actors or setup.actors
    wanted, most = math.ceil(round(now / max(idle, 0.05), 3)), setup.most_actors
    where = ", on hosts that join" if setup.elsewhere else ""
    if facts.machine_cpu_percent is None:
        idle_cores = setup.cores - setup.actors * facts.cores_per_actor - 1
    else:
        idle_cores = setup.cores * (1 - facts.machine_cpu_percent / 100)
    room = int(idle_cores / facts.cores_per_actor + 0.25)
    if now >= most and (setup.elsewhere or room > 0):
        return f"the run admits {_actors(most)}{where}; resume it with a higher `actors`"
    if setup.elsewhere:
        helps = "keep" if wanted <= most else "help to keep"
        return f"{_actors(min(wanted, most))}{where}, would {helps} the learner busy"
    if room > 0:
        return f"{_actors(min(wanted, setup.actors + room, most))} would use the idle cores"
    learn = (
        f", or raise limiter.samples_per_insert from {ratio:g} to {ratio / max(idle, 0.05):.2g}"
        if ratio
        else ""
    )
    return f"{_cores(facts)} are busy, so use faster environments (native vectorization){learn}"


def _cores_bound(facts: Facts) -> Verdict | None:
    setup = facts.setup
    wanted = setup.actors * facts.cores_per_actor + 1
    if setup.elsewhere or wanted <= setup.cores or not _full(facts):
        return None
    return Verdict(
        "cores-bound",
        f"cores-bound: {_actors(setup.actors)} and the learner share {_cores(facts)}, and neither "
        f"side waits much (actors {_pc(facts.actors_wait)} of their time, the learner "
        f"{_pc(facts.learner_waits)}); only more cores or cheaper steps make it faster",
    )


def _balanced(facts: Facts) -> Verdict:
    evidence = (
        f"actors wait {_pc(facts.actors_wait)} of their time, "
        f"the learner {_pc(facts.learner_waits)} of its"
    )
    if facts.setup.samples_per_insert == 0:
        return Verdict(
            "unlimited",
            f"unlimited: {evidence}, and samples per insert are not limited; each transition was "
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
