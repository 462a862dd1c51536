from __future__ import annotations

import numpy as np
import pytest

from asyncrl.core.errors import NonFiniteModel
from asyncrl.learner.run_services import take_snapshot
from tests.support.fakes import ConstantAgent


def test_snapshot_is_numbered_by_the_run_not_by_the_agent() -> None:
    agent = ConstantAgent(action=4)
    info = take_snapshot(agent, opt_steps=7, env_steps=90)
    assert (info.version, info.env_steps, int(info.params["action"])) == (7, 90, 4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_model_that_is_not_finite_stays_where_it_is(bad: float) -> None:
    agent = ConstantAgent()
    agent.params["weight"] = np.array([1.0, bad])
    with pytest.raises(NonFiniteModel, match="parameter 'weight' is not finite after 7"):
        take_snapshot(agent, opt_steps=7, env_steps=0)
