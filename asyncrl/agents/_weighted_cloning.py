"""What AWAC and IQL share: critics beside the policy, which decide how strongly it clones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from asyncrl.agents._actor_critic import SlowCopy
from asyncrl.agents._cloning import CloningConfig, CloningPolicy, Descent
from asyncrl.agents._matmul import pick_matmul
from asyncrl.agents.networks import MakeNetwork, NetworkInput
from asyncrl.agents.torch_agent import TorchAgent
from asyncrl.agents.updates import Updates
from asyncrl.core.errors import ConfigError
from asyncrl.core.settings import check_positive
from asyncrl.core.types import Array, Columns, ModelVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedCloningConfig(CloningConfig):
    """Settings of critics, and of how much they decide."""

    n_critics: int = 2
    """Critics; the least of their values is the one believed."""

    critic_network: MakeNetwork | None = None
    """Makes your own critic, and is called `n_critics` times: for choices, observations ->
    (B, choices); for quantities, observations and actions (B, dimensions), in units in which the
    bounds are -1 and 1 -> (B, 1) or (B,)."""

    max_weight: float = 100.0
    """No action is cloned more than that many times as strongly as an average one."""

    tau: float = 0.005
    """How far the slow critics follow the critics, at each optimisation step."""

    def __post_init__(self) -> None:
        CloningConfig.__post_init__(self)
        if self.n_critics < 1:
            raise ConfigError(f"agent.n_critics must be at least 1, got {self.n_critics}")
        if not 0.0 < self.tau <= 1.0:
            raise ConfigError(f"agent.tau must lie in (0, 1], got {self.tau}")
        check_positive("max_weight", self.max_weight)


class WeightedCloning(CloningPolicy, TorchAgent, ABC):
    """What also learns. A subclass is built as a policy, then calls `equip`, and adds `_update`."""

    def equip(
        self, config: WeightedCloningConfig, critics: nn.Module, others: Sequence[nn.Module] = ()
    ) -> None:
        """Make what learning needs; `others` are networks that learn beside actor and critics."""
        self.critics = critics
        self._slow = SlowCopy(critics, config.tau)
        self._descent = Descent([self.actor, critics, *others], config)
        self._matmul = pick_matmul(self.device, self.actor, critics, *others, hidden=config.hidden)
        self._descend = config.uncompiled(self._step_down)
        self._updates = Updates(
            self._update,
            config,
            self.model,
            self.read_obs,
            self.device,
            learning=[self.model, critics, *others],
        )
        self.on_load.append(self._updates.forget)
        self.parts |= {
            "critics": critics,
            "targets": self._slow.network,
            "optimizer": self._descent.adam,
            "random": self.random,
        }

    def priorities(self) -> Array:
        """Return the absolute error of each row of the newest batch, its mean over the critics."""
        return self._updates.priorities()

    def _learn(self, batch: Columns, more: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Do what an optimisation step does around the equations."""
        self._descent.adam.follow(self.env_steps)
        with self._matmul():
            told = self._updates.step(batch, more)
        self.version = ModelVersion(self.version + 1)
        return told | self._descent.adam.tell("learning_rate")

    @abstractmethod
    def _update(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Learn from a batch on the device. Recorded or compiled, it is what runs each time."""

    def _step_down(self, loss: Tensor) -> None:
        """Step down the slope of the losses, and let the slow critics follow."""
        self._descent(loss)
        self._slow.follow()

    def _values(self, critics: nn.Module, obs: NetworkInput, action: Tensor) -> Tensor:
        with self._precision():
            values: Tensor = self._in_parts(critics, obs, action, dim=1)
        return values.float()
