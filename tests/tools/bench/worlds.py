"""Machines made up, whose speed is known."""

from __future__ import annotations

from dataclasses import dataclass, field

from asyncrl.tools.bench.trial import Trial
from asyncrl.tools.bench.tuner import Plan


@dataclass
class World:
    """Runs plans in no time, and notes which. Costs are seconds of a core, `sleep_s` is not."""

    cores: int = 8
    samples_per_insert: float = 4.0
    opt_s: float = 1e-3
    call_s: float = 30e-6
    env_s: float = 7e-6
    message_s: float = 20e-6
    sleep_s: float = 0.0
    took_s: float = 3.0
    now_s: float = 0.0
    runs: list[Plan] = field(default_factory=list)

    def run_plan(self, plan: Plan) -> Trial:
        self.runs.append(plan)
        self.now_s += self.took_s
        calls = self.call_s / plan.envs_per_actor + self.message_s / plan.segment_length
        step_s, ratio = self.env_s + calls, self.samples_per_insert / 256
        rate = min(
            plan.actors / (step_s + self.sleep_s),
            self.cores / (step_s + ratio * self.opt_s),
            1 / (ratio * self.opt_s),
        )
        return Trial(
            env_steps_per_s=rate, opt_steps_per_s=rate * ratio, rate=rate, took_s=self.took_s
        )

    def clock(self) -> float:
        return self.now_s
