"""TorchRL's networks, losses and environments, built as in its examples."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential
from torch import Tensor, nn
from torchrl.data import Bounded, Categorical, LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import EnvBase, GymWrapper, ParallelEnv, SerialEnv
from torchrl.modules import (
    MLP,
    EGreedyModule,
    ProbabilisticActor,
    QValueActor,
    TanhNormal,
    ValueOperator,
)
from torchrl.objectives import DQNLoss, HardUpdate, SACLoss, SoftUpdate

from benchmarks.peers.interface import (
    ATARI,
    PIXEL_FEATURES,
    Sizes,
    convolutions,
    make_env,
    make_vector,
)

MAX_GRADIENT_NORM = 10.0
"""Gradient clipping of DQN, as in Stable-Baselines3."""

CONTINUOUS_KEYS = ["observation", "action"]


def make_envs(env_id: str, kind: str, n: int) -> EnvBase:
    """Return one of the ways in which TorchRL runs several environments."""
    make_one = partial(make_wrapped, env_id)
    if kind == "serial":
        return SerialEnv(n, make_one)
    if kind == "parallel":
        return ParallelEnv(n, make_one)
    return GymWrapper(make_vector(env_id, kind, n), categorical_action_encoding=True)


def make_wrapped(env_id: str) -> EnvBase:
    """Return one environment of TorchRL."""
    return GymWrapper(make_env(env_id), categorical_action_encoding=True)


class FloatObs(nn.Module):
    """Converts observations to float32; MuJoCo's are float64."""

    def forward(self, obs: Tensor) -> Tensor:
        """Convert."""
        return obs.float()


def make_body(env_id: str, n_inputs: int, n_outputs: int) -> nn.Sequential:
    """Return the network: 64x64, for images behind the convolutions of Mnih et al. (2015)."""
    layers: list[nn.Module] = [FloatObs()]
    if env_id == ATARI:
        layers += convolutions()
        n_inputs = PIXEL_FEATURES
    layers += [nn.Linear(n_inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(64, n_outputs))


def make_policy(env_id: str) -> Any:  # noqa: ANN401  # untyped where this is checked
    """Return the exploring policy whose sampling is measured."""
    env = make_wrapped(env_id)
    spec, n_inputs = env.action_spec, env.observation_spec["observation"].shape[-1]
    if isinstance(spec, Categorical):
        actor = QValueActor(make_body(env_id, n_inputs, spec.n), spec=spec)
        return TensorDictSequential(actor, EGreedyModule(spec, eps_init=0.1, eps_end=0.1))
    body = nn.Sequential(make_body(env_id, n_inputs, 2 * spec.shape[-1]), NormalParamExtractor())
    return make_gaussian(body, spec)


def make_gaussian(body: nn.Module, spec: Any) -> ProbabilisticActor:  # noqa: ANN401  # untyped
    """Return SAC's actor."""
    return ProbabilisticActor(
        TensorDictModule(body, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": spec.space.low, "high": spec.space.high},
        return_log_prob=False,
    )


def make_replay(capacity: int, batch: int) -> TensorDictReplayBuffer:
    """Return a replay buffer of tensors in memory."""
    return TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=batch)


def make_td(rows: Mapping[str, Any]) -> TensorDict:
    """Return rows as transitions of TorchRL."""
    n = len(rows["reward"])
    ended = torch.as_tensor(rows["terminated"]).view(n, 1)
    after = {
        "observation": torch.as_tensor(rows["next_obs"]),
        "reward": torch.as_tensor(rows["reward"]).view(n, 1),
        "terminated": ended,
        "done": ended.clone(),
    }
    now = {"observation": torch.as_tensor(rows["obs"]), "action": torch.as_tensor(rows["action"])}
    return TensorDict({**now, "next": TensorDict(after, [n])}, [n])


class Learner:
    """DQN or SAC: networks, loss, optimizer and target networks."""

    def __init__(self, sizes: Sizes, *, discrete: bool) -> None:
        self._discrete = discrete
        if discrete:
            spec: Any = Categorical(sizes.actions)
            body: nn.Module = MLP(sizes.obs, sizes.actions, num_cells=list(sizes.hidden))
            self.actor = QValueActor(body, spec=spec)
            self._loss = DQNLoss(self.actor, action_space=spec, loss_function="smooth_l1")
            self._targets = HardUpdate(self._loss, value_network_update_interval=500)
        else:
            spec = Bounded(-1.0, 1.0, (sizes.actions,))
            mlp = MLP(
                sizes.obs, 2 * sizes.actions, num_cells=list(sizes.hidden), activation_class=nn.ReLU
            )
            body = nn.Sequential(mlp, NormalParamExtractor())
            self.actor = make_gaussian(body, spec)
            critic = MLP(
                sizes.obs + sizes.actions, 1, num_cells=list(sizes.hidden), activation_class=nn.ReLU
            )
            self._loss = SACLoss(
                self.actor,
                ValueOperator(critic, in_keys=CONTINUOUS_KEYS),
                loss_function="l2",
                action_spec=spec,
            )
            self._targets = SoftUpdate(self._loss, tau=0.005)
        self._loss.make_value_estimator(gamma=0.99)
        self._optimizer = torch.optim.Adam(self._loss.parameters(), lr=3e-4)

    def update(self, batch: TensorDict) -> None:
        """Take one optimisation step."""
        losses = self._loss(batch)
        self._optimizer.zero_grad()
        sum(loss for name, loss in losses.items() if name.startswith("loss")).backward()
        if self._discrete:
            nn.utils.clip_grad_norm_(self._loss.parameters(), MAX_GRADIENT_NORM)
        self._optimizer.step()
        self._targets.step()
