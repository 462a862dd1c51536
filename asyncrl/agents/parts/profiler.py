"""Profiles the learner's time with torch's profiler."""

from __future__ import annotations

from pathlib import Path

from torch.profiler import profile

from asyncrl.core.callback import Callback, Training

_SKIP_OPT_STEPS = 50  # they also load lazy imports


class Profiler(Callback):
    """Profiles some of the learner's steps, once."""

    def __init__(self, trace: Path, opt_steps: int) -> None:
        """Record `opt_steps` optimisation steps after the first 50.

        `trace` becomes JSON for https://ui.perfetto.dev or chrome://tracing.
        """
        self._trace = trace
        self._opt_steps = opt_steps
        self._profile: profile | None = None
        self._ends_at = 0

    def begin(self, trainer: Training) -> None:
        """Create the profiler, and note where the run begins."""
        # There is one cycle to accumulate; without this, torch 2.11 warns.
        self._profile = profile(acc_events=True)
        self._ends_at = trainer.opt_steps + _SKIP_OPT_STEPS + self._opt_steps

    def step(self, trainer: Training) -> None:
        """Start or stop it, if it is time."""
        if self._profile is None:
            return
        left = self._ends_at - trainer.opt_steps
        if left <= 0:
            self.close(trainer)
        elif left <= self._opt_steps and self._profile.profiler is None:
            self._profile.start()

    def close(self, trainer: Training) -> None:
        """Write the profile, even if the run was shorter."""
        if self._profile is not None and self._profile.profiler is not None:
            self._profile.stop()
            self._trace.parent.mkdir(parents=True, exist_ok=True)
            self._profile.export_chrome_trace(str(self._trace))
        self._profile = None
