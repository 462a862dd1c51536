"""Machines made up, on which the model is exactly right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from asyncrl.bench.cost_model import ActorCost, LearnerCost, Plan, Task, predict
from asyncrl.bench.trial import Trial
from asyncrl.metrics.verdict import Verdict

CostOf = Callable[[Plan], ActorCost]


def actor_cost(
    call_s: float = 30e-6, row_s: float = 0.5e-6, env_s: float = 7e-6, message_s: float = 20e-6
) -> CostOf:
    """Let each call of the policy, and each message, have a fixed cost."""

    def cost(plan: Plan) -> ActorCost:
        return ActorCost(
            policy_s=call_s / plan.envs_per_actor + row_s,
            env_s=env_s,
            send_s=message_s / plan.segment_length,
        )

    return cost


@dataclass
class World:
    """Runs plans in no time, and notes which."""

    cores: int = 8
    samples_per_insert: float = 4.0
    opt_s: float = 1e-3
    cost_of: CostOf = field(default_factory=actor_cost)
    took_s: float = 3.0
    now_s: float = 0.0
    runs: list[tuple[Plan, bool]] = field(default_factory=list)

    @property
    def task(self) -> Task:
        return Task(cores=self.cores, batch_size=256, samples_per_insert=self.samples_per_insert)

    def run_plan(self, plan: Plan, *, limited: bool) -> Trial:
        self.runs.append((plan, limited))
        self.now_s += self.took_s
        actor, learner = self.cost_of(plan), LearnerCost(wall_s=self.opt_s, cpu_s=self.opt_s)
        ratio = self.samples_per_insert if limited else 0.0
        task = Task(cores=self.cores, batch_size=256, samples_per_insert=ratio)
        found = predict(plan, actor, learner, task)
        return Trial(
            env_steps_per_s=found.env_steps_per_s,
            opt_steps_per_s=found.opt_steps_per_s,
            actor=actor,
            learner=learner,
            verdict=Verdict("balanced", "balanced: made up"),
            limited=limited,
            took_s=self.took_s,
        )

    def clock(self) -> float:
        return self.now_s
