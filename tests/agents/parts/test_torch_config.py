"""Settings that torch agents share: what does not go together is refused."""

from __future__ import annotations

import pytest

from asyncrl.agents.dqn import DQNConfig
from asyncrl.core.errors import ConfigError


def test_parts_of_a_batch_are_refused_where_a_compiler_would_undo_them() -> None:
    assert DQNConfig(accumulate=4).accumulate == 4
    with pytest.raises(ConfigError, match=r"agent\.accelerate='compile'"):
        DQNConfig(accumulate=4, accelerate="compile")
