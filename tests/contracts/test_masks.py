"""What holds for every agent with discrete actions where observations say which are allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from asyncrl.agents.discrete_sac import DiscreteSACConfig
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.parts.cloning import CloningConfig
from asyncrl.agents.parts.q_learning import QConfig
from asyncrl.agents.parts.torch_agent import TorchConfig
from asyncrl.core.agent import Policy, PolicyContext, evaluation_mode, forget
from asyncrl.core.env import ACTION_MASK, BoxSpec, DiscreteSpec, EnvSpec, PackedSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array
from asyncrl.export.export import export_policy
from asyncrl.export.policy_numpy import Policy as NumpyPolicy
from asyncrl.tools.doctor.agent import Subject, examine_agent
from tests.contracts.test_agent import CASES, CHOICES, OBSERVATION, batch_for, greedy
from tests.contracts.test_agent import Case as AgentCase

N_ACTIONS = 4
N_ENVS = 1000
MASK = BoxSpec((N_ACTIONS,), "int8", np.zeros(N_ACTIONS, np.int8), np.ones(N_ACTIONS, np.int8))
FIELDS = PackedSpec((("observation", OBSERVATION), (ACTION_MASK, MASK)))
SPEC = EnvSpec(FIELDS, DiscreteSpec(N_ACTIONS))

MASKED = {
    name: AgentCase(case.config, SPEC)
    for name, case in CASES.items()
    if name == "iql" or (case.spec == CHOICES and isinstance(case.config, TorchConfig))
}
every_agent = pytest.mark.parametrize("case", MASKED.values(), ids=MASKED)
pytestmark = pytest.mark.learning


def observations(random: np.random.Generator, rows: int = N_ENVS) -> tuple[Array, Array]:
    """Return observations, and the masks in them, each of which allows an action."""
    mask = random.integers(2, size=(rows, N_ACTIONS), dtype=np.int8)
    mask[np.arange(rows), random.integers(N_ACTIONS, size=rows)] = 1
    seen = random.normal(size=(rows, 3)).astype(np.float32)
    return FIELDS.pack({"observation": seen, ACTION_MASK: mask}), mask


def all_allowed(policy: Policy, calls: int, random: np.random.Generator) -> bool:
    allowed = True
    for _ in range(calls):
        obs, mask = observations(random)
        forget(policy, random.random(N_ENVS) < 0.1)
        allowed &= bool(mask[np.arange(N_ENVS), policy.act(obs).action].all())
    return allowed


def test_keeps_the_contract() -> None:
    findings = examine_agent(MASKED["r2d2"].config, SPEC)
    assert not [finding for finding in findings if finding.level != "ok"]


@every_agent
def test_no_forbidden_action_in_30_000_steps(case: AgentCase) -> None:
    random = np.random.default_rng(0)
    context = PolicyContext(seed=5, n_envs=N_ENVS)
    policy: Any = case.config.build_policy(SPEC, context)
    assert all_allowed(policy, 25, random), "in training"
    with evaluation_mode(policy):
        assert all_allowed(policy, 5, random), "in evaluation"
    chooser = policy.chooser_spec(SPEC, context)  # all that an actor has with served inference
    chooser.inference = policy.inference
    assert all_allowed(chooser, 5, random), "with served inference"


def masked_batch(case: AgentCase, mask: int | list[int]) -> dict[str, Any]:
    """Return a batch with this mask in all observations."""
    batch = batch_for(case, 0)
    for name in ("obs", "next_obs"):
        if name in batch:
            FIELDS.unpack(batch[name])[ACTION_MASK][...] = mask
    return batch


def favour_action_0(modules: nn.Module, by: float) -> int:
    """Add to the last layers' output for action 0, of its highest atom; return their number."""
    layers = 0
    for module in modules.modules():
        if isinstance(module, nn.Linear) and module.out_features in {N_ACTIONS, 11 * N_ACTIONS}:
            with torch.no_grad():
                module.bias.view(N_ACTIONS, -1)[0, -1] += by
            layers += 1
    return layers


@every_agent
def test_outputs_of_forbidden_actions_do_not_enter_what_is_learned(case: AgentCase) -> None:
    """Action 0 is forbidden in all observations, and its outputs are very different."""
    if hasattr(case.config, "dueling"):  # such streams mix all outputs before the mask
        case = case.changed(dueling=False)
    batch = masked_batch(case, [0, 1, 1, 0])
    batch["action"] = 1 + batch["action"] % 2
    numbers_of = []
    for by in (0.0, 30.0):
        agent: Any = case.build()
        parts = {name: part for name, part in agent.parts.items() if isinstance(part, nn.Module)}
        changed = {name: favour_action_0(part, by) for name, part in parts.items()}
        assert changed["model"], "the layer was found"
        numbers_of.append({name: np.asarray(x) for name, x in agent.opt(batch).items()})
    assert numbers_of[0].keys() == numbers_of[1].keys()
    for name, value in numbers_of[0].items():
        np.testing.assert_allclose(value, numbers_of[1][name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_forbidden_actions_would_enter_without_a_mask() -> None:
    """The same change shows in the loss if the action is allowed."""
    case = MASKED["dqn"]
    batch = masked_batch(case, 1)
    losses = []
    for by in (0.0, 30.0):
        agent: Any = case.build()
        favour_action_0(agent.parts["model"], by)
        favour_action_0(agent.parts["target"], by)
        losses.append(float(agent.opt(batch)["loss"]))
    assert abs(losses[0] - losses[1]) > 1.0


@every_agent
def test_where_nothing_is_allowed_nothing_is_forbidden(case: AgentCase) -> None:
    """Such as at the end of an episode: no target may become as low as a forbidden action's."""
    batch = masked_batch(case, 0)
    numbers = case.build().opt(batch)
    assert all(np.abs(np.asarray(number)).max() < 1e6 for number in numbers.values())


VALUES = {n: c for n, c in MASKED.items() if isinstance(c.config, QConfig | DiscreteSACConfig)}


@pytest.mark.parametrize("case", VALUES.values(), ids=VALUES)
def test_forbidden_actions_of_the_data_have_values_like_others(case: AgentCase) -> None:
    """Such as those of a person, or of a policy that knew no mask."""
    batch = masked_batch(case, [0, 1, 1, 1])
    batch["action"] = 0 * batch["action"]
    agent = case.build()
    numbers = [*agent.opt(batch).values(), agent.priorities()]
    assert all(np.abs(np.asarray(number)).max() < 1e3 for number in numbers)


CLONING = {n: c for n, c in MASKED.items() if isinstance(c.config, CloningConfig)}


@pytest.mark.parametrize("case", CLONING.values(), ids=CLONING)
def test_forbidden_actions_of_the_data_are_not_imitated(case: AgentCase) -> None:
    moved = []
    for taken in (0, 1):
        batch, agent = masked_batch(case, [0, 1, 1, 1]), case.build()
        batch["action"][:] = taken
        before = {name: tensor.clone() for name, tensor in agent.actor.state_dict().items()}
        numbers = agent.opt(batch)
        assert all(np.abs(np.asarray(number)).max() < 1e3 for number in numbers.values())
        after = agent.actor.state_dict()
        moved.append(any(not torch.equal(after[name], before[name]) for name in before))
    assert moved == [False, True]


@pytest.mark.parametrize(
    ("name", "file"), [("iqn", "a.npz"), ("r2d2", "a.npz"), ("ppo", "a.npz"), ("dqn", "a.onnx")]
)
def test_exported_policies_choose_allowed_actions(name: str, file: str, tmp_path: Path) -> None:
    policy: Any = MASKED[name].build_policy()
    favour_action_0(policy.model, 30.0)
    obs, mask = observations(np.random.default_rng(1))
    fields = FIELDS.unpack(obs)
    if file.endswith("npz"):
        export_policy(policy, SPEC, tmp_path / file)
        action = NumpyPolicy(tmp_path / file).act(fields)
    else:
        runtime = pytest.importorskip("onnxruntime")
        export_policy(policy, SPEC, tmp_path / file)
        inputs = {f"obs/{name}": field for name, field in fields.items()}
        (action,) = runtime.InferenceSession(tmp_path / file).run(None, inputs)
    assert mask[np.arange(N_ENVS), action].all()
    assert (action == greedy(policy, obs)).mean() > 0.99  # ties may round in another way
    assert (action == 0).sum() > N_ENVS // 4, "it is the best one where it is allowed"


class SeesNoMask(nn.Module):
    """A custom network for plain observations of three numbers."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        assert spec.observation == OBSERVATION
        self.layer = nn.Linear(3, N_ACTIONS)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.layer(obs)
        return answer


def test_custom_networks_get_the_observation_without_the_mask() -> None:
    config = DQNConfig(network=SeesNoMask, device="cpu")
    policy = config.build_policy(SPEC, PolicyContext(seed=0, n_envs=N_ENVS))
    assert all_allowed(policy, 3, np.random.default_rng(0))
    assert Subject(config, SPEC).agent(0).opt(batch_for(MASKED["dqn"], 0))


@pytest.mark.parametrize(
    ("mask", "action", "said"),
    [
        (MASK, DiscreteSpec(5), r"has shape \(4,\).* one number for each: \(5,\)"),
        (MASK, OBSERVATION, "must have one number for each: there are none"),
    ],
)
def test_masks_of_another_size_are_refused(mask: BoxSpec, action: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        EnvSpec(PackedSpec(((ACTION_MASK, mask),)), action)
