"""What every source of stacked frames must hold to."""

from __future__ import annotations

import numpy as np

from asyncrl.core.env import EnvStep


def stacks_follow(first: np.ndarray, steps: list[EnvStep]) -> int:
    """Check that stacks move by one frame, and begin with one frame only; count beginnings."""
    assert (first == first[:, -1:]).all()
    obs, begun = first, 0
    for step in steps:
        kept = np.ones(len(obs), bool) if step.stepped is None else step.stepped
        assert (step.final_obs[kept, :-1] == obs[kept, 1:]).all()
        ended = step.terminated | step.truncated
        fresh = ~kept if step.stepped is not None or step.obs is step.final_obs else ended
        assert (step.obs[fresh] == step.obs[fresh, -1:]).all()
        begun += int(fresh.sum())
        obs = step.obs
    assert obs.shape[1] == 4
    return begun
