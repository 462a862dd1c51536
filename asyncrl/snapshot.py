"""A model on its way out of the learner: numbered by the run, and never one that is not finite."""

from __future__ import annotations

import numpy as np

from asyncrl.core.agent import SyncModel
from asyncrl.core.errors import NonFiniteModel
from asyncrl.core.messages import ModelInfo
from asyncrl.core.types import ModelVersion


def take_snapshot(agent: SyncModel, *, opt_steps: int, env_steps: int) -> ModelInfo:
    """Return the agent's model as it is now; the counts are the run's, not the agent's own."""
    params = agent.model_info().params
    for name, value in params.items():
        if not np.isfinite(value).all():
            raise NonFiniteModel(
                f"parameter {name!r} is not finite after {opt_steps} optimisation steps; the model "
                "was neither published nor evaluated nor saved. A lower learning rate or gradient "
                "clipping may help; the last checkpoint is from before"
            )
    return ModelInfo(version=ModelVersion(opt_steps), params=params, env_steps=env_steps)
