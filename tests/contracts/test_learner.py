"""What every algorithm does with batches, gradients, rates and networks of a user's own.

The cases are those of `test_agent`, whose contract they keep; an algorithm's own file has its
equations.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from asyncrl.agents.awac import AWACConfig
from asyncrl.agents.iql import IQLConfig
from asyncrl.agents.parts.schedules import Schedule
from asyncrl.core.agent import PolicyContext, evaluation_mode
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec, PackedSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Columns
from tests.agents import cloning
from tests.agents.bandit import mixed_data, value_of
from tests.contracts.test_agent import (
    ALGORITHMS,
    CASES,
    REMEMBERING,
    Case,
    batch_for,
    every_algorithm,
    observations,
)

VALUED = {name: case for name, case in ALGORITHMS.items() if name not in {"ppo", "impala", "bc"}}
FOLLOWED = {name: case for name, case in ALGORITHMS.items() if hasattr(case.config, "tau")}

every_valued = pytest.mark.parametrize("case", VALUED.values(), ids=VALUED)


def changed(case: Case, **settings: Any) -> Case:
    """Return the same case with other settings, and a policy that moves in every step."""
    if hasattr(case.config, "policy_interval_opt_steps"):
        settings["policy_interval_opt_steps"] = 1
    return case.changed(**settings)


def networks(agent: Any, *, target: bool = False) -> dict[str, nn.Module]:
    """Return what learns, by its name in the agent's state, or the target networks."""
    found = {name: part for name, part in agent.parts.items() if isinstance(part, nn.Module)}
    kind = "target"
    return {n: m for n, m in found.items() if n.startswith(kind) is target and n != "value_norm"}


def parameters(agent: Any) -> torch.Tensor:
    """Return a copy of all that learns, in one row."""
    modules = networks(agent).values()
    return torch.cat([p.detach().flatten() for m in modules for p in m.parameters()]).clone()


def learned(agent: Any, batch: Columns) -> dict[str, float]:
    return {name: float(value) for name, value in agent.opt(batch).items()}


def losses(case: Case, batch: Columns) -> np.ndarray:
    """Return what a new agent loses on a batch, of values: all that weights of rows weigh."""
    numbers = learned(case.build(), {name: column.copy() for name, column in batch.items()})
    of_values = numbers.keys() & {"loss", "critic_loss", "value_loss"}
    return np.array([numbers[name] for name in sorted(of_values)])


# --- numbers ------------------------------------------------------------------------------------


ROUNDED = {name: case for name, case in ALGORITHMS.items() if name != "crossq"}
"""What normalises by batches goes astray sooner: its own file has a test of its critics."""


@pytest.mark.parametrize("case", ROUNDED.values(), ids=ROUNDED)
def test_bfloat16_learns_much_the_same(case: Case) -> None:
    exact, rounded = case.build(), changed(case, precision="bfloat16").build()
    for number in range(6):
        right, found = (learned(agent, batch_for(case, number)) for agent in (exact, rounded))
        assert found == pytest.approx(right, rel=0.1, abs=0.01)
    assert not torch.equal(parameters(exact), parameters(rounded))
    torch.testing.assert_close(parameters(exact), parameters(rounded), rtol=0, atol=0.02)


@every_valued
def test_weights_weigh_the_errors_of_their_rows(case: Case) -> None:
    batch = batch_for(case, 0)
    rows = len(batch["reward"])
    some = np.random.default_rng(1).random(rows).astype(np.float32)
    some[3] = 0.0
    weighted = {**batch, "weight": some}
    whole = losses(case, batch)
    np.testing.assert_allclose(
        losses(case, {**batch, "weight": np.ones(rows, np.float32)}), whole, rtol=1e-5
    )
    the_others = {**batch, "weight": 1.0 - some}
    both = losses(case, weighted) + losses(case, the_others)
    np.testing.assert_allclose(both, whole, rtol=1e-4)
    reward = batch["reward"].copy()
    reward[3] += 10.0
    np.testing.assert_allclose(
        losses(case, {**weighted, "reward": reward}), losses(case, weighted), rtol=1e-5
    )
    assert (losses(case, {**the_others, "reward": reward}) != losses(case, the_others)).any()


# --- steps --------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", FOLLOWED.values(), ids=FOLLOWED)
def test_target_networks_follow_by_tau(case: Case) -> None:
    agent: Any = changed(case, tau=0.25).build()
    targets, online = networks(agent, target=True), networks(agent)
    critics = {"targets": "critics", "target_critics": "critics"}
    of = {"target": "model", "target_actor": "model", **critics}
    assert targets
    for number in range(2):
        before = {name: [p.clone() for p in part.parameters()] for name, part in targets.items()}
        agent.opt(batch_for(case, number))
        for name, part in targets.items():
            moved = zip(before[name], part.parameters(), online[of[name]].parameters(), strict=True)
            for old, new, ahead in moved:
                torch.testing.assert_close(new, old + 0.25 * (ahead - old))
        assert any(
            not torch.equal(p, q)
            for name, part in targets.items()
            for p, q in zip(before[name], part.parameters(), strict=True)
        )


CUT = {name: case for name, case in ALGORITHMS.items() if hasattr(case.config, "max_grad_norm")}


@pytest.mark.parametrize("case", CUT.values(), ids=CUT)
def test_gradients_of_each_network_are_cut_to_their_largest_norm(case: Case) -> None:
    once = {"epochs": 1, "minibatches": 1} if hasattr(case.config, "epochs") else {}

    def norms(max_grad_norm: float) -> list[float]:
        agent = changed(case, max_grad_norm=max_grad_norm, **once).build()
        uncut.append(learned(agent, batch_for(case, 0)).get("grad_norm", 0.0))
        of = [[p.grad for p in module.parameters()] for module in networks(agent).values()]
        return [float(nn.utils.get_total_norm([g for g in some if g is not None])) for some in of]

    uncut: list[float] = []
    free = norms(0.0)
    limit = min(free) / 2
    assert norms(limit) == pytest.approx([limit] * len(free), rel=1e-3)
    assert norms(2 * max(free)) == pytest.approx(free)
    assert uncut == pytest.approx([uncut[0]] * 3, rel=1e-5), "the norm before clipping"


@every_algorithm
def test_learning_rates_follow_the_env_steps_of_the_run_and_are_reported(case: Case) -> None:
    names = ("learning_rate", "actor_learning_rate", "critic_learning_rate")
    rates = {name: Schedule.linear(1e-3, 0.0, 100) for name in names if hasattr(case.config, name)}
    agent: Any = changed(case, **rates).build()
    for env_steps, moves in ((0, True), (100, False), (50, True)):
        agent.env_steps = env_steps
        before = {name: [p.clone() for p in m.parameters()] for name, m in networks(agent).items()}
        numbers = learned(agent, batch_for(case, 0))
        expected = pytest.approx(1e-3 * (1 - env_steps / 100))
        assert {name: numbers[name] for name in rates} == dict.fromkeys(rates, expected)
        for name, module in networks(agent).items():
            pairs = zip(before[name], module.parameters(), strict=True)
            assert any(not torch.equal(p, q) for p, q in pairs) is moves


# --- spaces -------------------------------------------------------------------------------------


def box(shape: tuple[int, ...], dtype: str, low: float, high: float) -> BoxSpec:
    return BoxSpec(shape, dtype, np.full(shape, low, dtype), np.full(shape, high, dtype))


CAMERA = box((3, 40, 40), "uint8", 0, 255)
JOINTS = box((4,), "float64", -np.inf, np.inf)
FIELDS = PackedSpec((("camera", CAMERA), ("joints", JOINTS), ("board", box((2, 3), "uint8", 0, 7))))
PLANES = box((4, 10, 10), "bool", 0, 1)
NUMBER = box((), "int64", 0, 255)
ACTIONS: dict[str, BoxSpec | DiscreteSpec] = {
    "one choice": DiscreteSpec(3),
    "choices": BoxSpec((2,), "int64", np.array([0, 1]), np.array([1, 3]), categorical=True),
    "one quantity": box((), "float64", -0.1, 0.7),
    "quantities": box((2, 3), "float16", -0.1, 0.7),
    "without bounds": BoxSpec(
        (2,), "float32", np.array([0, -np.inf], "float32"), np.array([1, np.inf], "float32")
    ),
}


# All agents read observations by the same code, so that few of them need every kind.
@pytest.mark.parametrize(
    ("name", "observation"),
    [
        *((name, FIELDS) for name in ALGORITHMS),
        *(("dqn", CAMERA), ("dqn", NUMBER), ("sac", PLANES), ("sac", JOINTS)),
    ],
)
def test_observations_of_any_kind_are_learned_from(name: str, observation: Any) -> None:
    case = ALGORITHMS[name]
    elsewhere = changed(Case(case.config, EnvSpec(observation, case.spec.action)))
    agent: Any = elsewhere.build()
    before = {name: copy.deepcopy(module.state_dict()) for name, module in networks(agent).items()}
    for number in range(3):
        assert np.isfinite(list(learned(agent, batch_for(elsewhere, number)).values())).all()
    assert parameters(agent).isfinite().all()
    for part, module in networks(agent).items():
        still = [k for k, p in module.named_parameters() if torch.equal(p, before[part][k])]
        assert not still


_CHOOSES = dict.fromkeys(("one quantity", "quantities", "without bounds"), "continuous.*use SAC")
_CHOOSES["choices"] = "several choices at once.*use PPO"
_SCALES = {
    "one choice": "3 discrete ones; use DQN",
    "choices": "float dtype.*several choices at once; use PPO",
    "without bounds": "must be finite and different.*set bounds of the action space",
}
_VALUES = {"choices": "one discrete action.*BC"}
REFUSALS = {
    **dict.fromkeys(("dqn", "c51", "rainbow", "iqn", "r2d2", "discrete-sac"), _CHOOSES),
    **dict.fromkeys(("sac", "crossq", "td3"), _SCALES),
    **dict.fromkeys(("awac", "iql"), _VALUES),
}


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("kind", ACTIONS)
def test_actions_of_any_kind_are_chosen_or_refused_with_advice(name: str, kind: str) -> None:
    action = ACTIONS[kind]
    case = Case(ALGORITHMS[name].config, EnvSpec(ALGORITHMS[name].spec.observation, action))
    if words := REFUSALS.get(name, {}).get(kind):
        with pytest.raises(ConfigError, match=words):
            case.build()
        if name not in {"awac", "iql"}:  # what acts values nothing
            with pytest.raises(ConfigError, match=words):
                case.build_policy()
        return
    agent = case.build()
    assert agent.act(observations()).action.dtype == action.dtype
    # Actions were held against their bounds where the batches come from.
    assert np.isfinite(list(learned(agent, batch_for(case, 0)).values())).all()


# --- networks of a user's own -------------------------------------------------------------------


class Own(nn.Module):
    """Sees observations, and actions from -1 to 1; normalises by batches, and learns its shapes."""

    def __init__(self, n_outputs: int, flat: bool) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.LazyBatchNorm1d(), nn.LazyLinear(8), nn.Tanh(), nn.Linear(8, n_outputs)
        )
        self.flat = flat

    def forward(self, obs: torch.Tensor, *action: torch.Tensor) -> torch.Tensor:
        assert all(one.abs().max() <= 1.0 for one in action)
        out: torch.Tensor = self.net(torch.cat([obs, *action], 1))
        return out.squeeze(1) if self.flat else out


def own(n_outputs: int, *, flat: bool = False) -> Callable[[EnvSpec], nn.Module]:
    return lambda _: Own(n_outputs, flat)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("dqn", {"network": own(4)}),
        ("r2d2", {"network": own(7)}),
        ("discrete-sac", {"actor_network": own(4), "critic_network": own(4)}),
        ("sac", {"actor_network": own(4), "critic_network": own(1), "n_critics": 3}),
        ("td3", {"actor_network": own(2), "critic_network": own(1, flat=True)}),
        ("crossq", {"actor_network": own(4), "critic_network": own(1)}),
    ],
)
def test_own_networks_learn_and_travel_with_their_statistics(
    name: str, made: dict[str, Any]
) -> None:
    case = changed(ALGORITHMS[name], **made)
    agent: Any = case.build()
    for module in networks(agent).values():
        assert all(b == 0 for n, b in module.named_buffers() if n.endswith("tracked")), "unseen"
    batch = batch_for(case, 0)
    batch["discount"] = 0 * batch["discount"]  # its targets stay constant
    losses = [learned(agent, batch) for _ in range(30)]
    of_values = "loss" if "loss" in losses[0] else "critic_loss"
    assert losses[-1][of_values] < losses[0][of_values]
    policy: Any = case.build_policy()
    policy.sync_model(agent.model_info())
    ours, theirs = agent.model_info().params, policy.model_info().params
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert any(name.endswith("running_mean") for name in theirs)
    online = networks(agent)
    for target, module in networks(agent, target=True).items():
        followed = online["model" if target in {"target", "target_actor"} else "critics"]
        for slow, fast in zip(module.buffers(), followed.buffers(), strict=True):
            assert torch.equal(slow, fast)


class Answers(nn.Module):
    """Answers with a fixed number of values, whatever the input."""

    def __init__(self, spec: EnvSpec, count: int = 7) -> None:
        super().__init__()
        self.linear = nn.Linear(spec.observation.shape[0], count)

    def forward(self, obs: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(obs)
        return out


@pytest.mark.behaviour(number=66)
@pytest.mark.parametrize(
    ("name", "network", "wanted"),
    [
        ("dqn", "network", "(2, 4)"),
        ("c51", "network", "(2, 44) or (2, 4, 11)"),
        ("sac", "actor_network", "(2, 4)"),
        ("sac", "critic_network", "(2, 1) or (2,)"),
        ("td3", "actor_network", "(2, 2)"),
        ("crossq", "actor_network", "(2, 4)"),
        ("discrete-sac", "actor_network", "(2, 4)"),
        ("discrete-sac", "critic_network", "(2, 4)"),
        ("bc", "actor_network", "(2, 4)"),
        ("awac", "critic_network", "(2, 4)"),
        ("iql", "critic_network", "(2, 1) or (2,)"),
        ("iql", "value_network", "(2, 1)"),
    ],
)
def test_networks_of_a_wrong_shape_are_refused(name: str, network: str, wanted: str) -> None:
    case = changed(ALGORITHMS[name], **{network: Answers})
    said = rf"agent\.{network} must .*{re.escape(wanted)}, got \(2, 7\)"
    for build in (case.build, case.build_policy) if network == "actor_network" else (case.build,):
        with pytest.raises(ConfigError, match=said):
            build()


@pytest.mark.parametrize("name", ["ppo", "impala", "iqn", "r2d2"])
def test_features_of_a_wrong_shape_are_refused(name: str) -> None:
    case = changed(ALGORITHMS[name], network=lambda _: nn.Unflatten(1, (1, 3)))
    said = r"agent\.network must .* features of shape \(2, any number\), got \(2, 1, 3\)"
    for build in (case.build, case.build_policy):
        with pytest.raises(ConfigError, match=said):
            build()


@pytest.mark.parametrize(("name", "count"), [("sac", 1), ("discrete-sac", 4), ("awac", 4)])
def test_critics_that_are_one_and_the_same_are_refused(name: str, count: int) -> None:
    one = Answers(ALGORITHMS[name].spec, count)
    said = r"agent\.critic_network is called 2 times and must return a new network each time"
    with pytest.raises(ConfigError, match=said):
        changed(ALGORITHMS[name], critic_network=lambda _: one).build()


# --- what is learned ----------------------------------------------------------------------------


OF_EACH_KIND = {"transitions": "dqn", "sequences": "r2d2", "trajectories": "ppo"}
REPLAYS = {"transitions": "Uniform", "sequences": "Sequence", "trajectories": "TrajectoryQueue"}


@every_algorithm
def test_batches_of_other_replays_are_refused_and_change_nothing(case: Case) -> None:
    wanted = getattr(case.config, "learns_from", "transitions")
    agent = case.build()
    before = parameters(agent)
    for kind in OF_EACH_KIND.keys() - {wanted}:
        with pytest.raises(ConfigError, match=rf"use {REPLAYS[wanted]}\w*Config"):
            agent.opt(batch_for(ALGORITHMS[OF_EACH_KIND[kind]], 0))
    assert torch.equal(parameters(agent), before)


@pytest.mark.parametrize("name", REMEMBERING)
def test_batches_with_memories_of_all_rows_are_refused(name: str) -> None:
    batch = batch_for(CASES[name], 0)
    memories = np.repeat(batch["memory"][:, None], 6, axis=1)
    with pytest.raises(ConfigError, match=r"set replay\.start_columns"):
        CASES[name].build().opt({**batch, "memory": memories})


@pytest.mark.parametrize("name", ["ppo", "ppo-lstm", "impala", "impala-gru"])
def test_batch_without_any_transition_changes_nothing(name: str) -> None:
    agent: Any = CASES[name].build()
    batch, before = batch_for(CASES[name], 0), parameters(agent)
    agent.opt({**batch, "mask": np.zeros_like(batch["mask"])})
    assert torch.equal(parameters(agent), before)
    assert agent.version == 1


@pytest.mark.parametrize(
    ("name", "settings", "opt_steps"),
    [
        ("sac", {"alpha": 0.01}, 400),
        ("td3", {}, 400),
        pytest.param(
            "crossq", {"alpha": 0.1, "critic_hidden": (32, 32)}, 1000, marks=pytest.mark.slow
        ),
    ],
)
def test_a_bandit_between_asymmetric_bounds_is_solved(
    name: str, settings: dict[str, Any], opt_steps: int
) -> None:
    spec = EnvSpec(box((1,), "float32", 0, 1), box((1,), "float32", -1, 5))
    rates = dict.fromkeys(("actor_learning_rate", "critic_learning_rate"), 3e-3)
    case = ALGORITHMS[name].changed(hidden=(32, 32), **rates, **settings)
    agent = case.config.build(spec, PolicyContext(seed=3))
    random = np.random.default_rng(0)
    for _ in range(opt_steps):
        obs = random.uniform(-1.0, 1.0, (128, 1)).astype(np.float32)
        action = random.uniform(-1.0, 5.0, (128, 1)).astype(np.float32)
        reward = -((action[:, 0] - 3.0 - obs[:, 0]) ** 2)  # the best is 3 + obs
        nothing = np.zeros(128, np.float32)
        columns = {"obs": obs, "next_obs": obs, "action": action, "reward": reward}
        agent.opt({**columns, "discount": nothing})
    obs = np.linspace(-0.9, 0.9, 19, dtype=np.float32)[:, None]
    with evaluation_mode(agent):
        np.testing.assert_allclose(agent.act(obs).action, 3.0 + obs, atol=0.5)


NORMALIZED = {"normalize_obs": True, "normalize_reward": True}


@pytest.mark.parametrize(
    ("make", "enough", "settings", "spec"),
    [(AWACConfig, 0.7, NORMALIZED, cloning.CONTINUOUS), (IQLConfig, 0.85, {}, cloning.CHOICES)],
)
def test_offline_agent_beats_the_policy_behind_its_data(
    make: type[AWACConfig | IQLConfig], enough: float, settings: dict[str, Any], spec: EnvSpec
) -> None:
    agent = make(
        hidden=(32,), device="cpu", learning_rate=3e-3, temperature=0.1, tau=0.05, **settings
    ).build(spec, cloning.CONTEXT)
    data = mixed_data(spec)
    for batch in data:
        agent.opt(batch)
    behaviour = np.mean([np.mean(batch["reward"]) for batch in data])
    assert behaviour < 0.55
    assert value_of(agent, spec) > enough, "the best action is worth 1"


# --- acceleration -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ppo", "impala", "r2d2"])
def test_those_whose_batches_differ_refuse_to_be_captured(name: str) -> None:
    with pytest.raises(ConfigError, match=r"agent\.accelerate='graphs' .* to off"):
        changed(ALGORITHMS[name], accelerate="graphs")


def still_marked(parameters: list[nn.Parameter]) -> int:
    return sum("mark" in get_gradient_edge(p).node.metadata for p in parameters)


@pytest.mark.parametrize("name", [n for n in ALGORITHMS if n not in {"ppo", "impala", "r2d2"}])
def test_updates_leave_nothing_behind_that_belongs_to_a_stream(name: str) -> None:
    """What autograd adds gradients up with remembers its stream, and would break a recording."""
    agent: Any = ALGORITHMS[name].build()
    agent.opt(batch_for(ALGORITHMS[name], 0))
    learned = [p for m in networks(agent).values() for p in m.parameters() if p.requires_grad]
    nodes = [get_gradient_edge(p).node for p in learned]
    for node in nodes:
        node.metadata["mark"] = True
    assert still_marked(learned) == len(learned) > 0
    agent.opt(batch_for(ALGORITHMS[name], 1))
    del nodes, node
    assert still_marked(learned) == 0
