"""Any Gymnasium vector environment as a `BatchEnv`, whatever its autoreset mode.

The mode is read once from `metadata["autoreset_mode"]`. In each mode `final_obs` holds the true
next observations, and no transition crosses a reset. The modes differ in when the next episode
begins:

    SAME_STEP   in the step that ends one: `obs` is already the next episode's first observation
    DISABLED    likewise, because this adapter resets ended episodes before `step` returns
    NEXT_STEP   one step later: at the end `obs` is still the last observation, and in the next
                step, whose action is ignored there, `stepped` is False, reward and flags are 0,
                and `obs` is the next episode's first

Wraps an environment that it is given; makes none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from asyncrl.core.env import EnvSpec, EnvStep, PackedSpec
from asyncrl.core.env_checks import shown
from asyncrl.core.errors import ConfigError, EnvironmentFault
from asyncrl.core.types import Array, BoolArray
from asyncrl.envs.checks import Checks, first_obs, of_api, space_of
from asyncrl.envs.infos import EpisodeInfo
from asyncrl.envs.spaces import ActionEncoder, Parts, spec_from_spaces


class VectorBatch:
    """A `BatchEnv` over a vector environment.

    Everything it returns is copied: native vector environments reuse their buffers, few of them
    document it, and a copy is cheap compared to a step.
    """

    checks_itself = True

    def __init__(self, vector_env: VectorEnv[Any, Any, Any], info: Sequence[str] = ()) -> None:
        self._env = vector_env
        self._n_envs = vector_env.num_envs
        self._mode = _autoreset_mode(vector_env)
        names = "single_observation_space", "single_action_space"
        spaces = space_of(vector_env, names[0]), space_of(vector_env, names[1])
        self._spec = spec_from_spaces(*spaces)
        self._structured = isinstance(self._spec.observation, PackedSpec)
        self._encode = ActionEncoder(spaces[1], self._n_envs)
        self._name = _name(vector_env)
        self._checks = Checks(self._name, self._n_envs, self._spec.observation, Parts(spaces[0]))
        self._info = EpisodeInfo(info, self._n_envs, self._name)
        self._resetting: BoolArray | None = None
        self._closed = False

    @property
    def spec(self) -> EnvSpec:
        """Spaces of one environment."""
        return self._spec

    @property
    def n_envs(self) -> int:
        """Number of environments."""
        return self._n_envs

    def reset(self, seed: int) -> Array:
        """Reset all environments; the vector environment derives their seeds from this one."""
        self._resetting = None
        obs = first_obs(self._env, self._name, seed=seed)
        self._info.begin()
        return self._first_obs(obs)

    def step(self, action: Array) -> EnvStep:
        """Step all environments."""
        encoded = self._encode(action)
        try:
            answer = self._env.step(encoded)
        except Exception as error:
            error.add_note(f"asyncrl: in step of {self._name}, actions {shown(encoded)}")
            raise
        raw_obs, raw_reward, terminations, truncations, infos = of_api("step", answer, self._name)
        obs = self._checks.own(raw_obs, action)
        self._checks.sound_obs("observation", obs, action)
        reward = self._checks.reward(raw_reward, action)
        terminated = self._checks.flags("terminated", terminations)
        truncated = self._checks.flags("truncated", truncations)
        stepped = None
        if self._resetting is not None:
            stepped = ~self._resetting
            reward[self._resetting] = 0.0
            terminated &= stepped
            truncated &= stepped
        self._checks.finite_reward(raw_reward, reward, action)
        ended = terminated | truncated
        same_step = self._mode is AutoresetMode.SAME_STEP
        at_end = infos.get("final_info", {}) if same_step else infos
        if self._info.every_step:
            self._info.add(infos, at_end, ended, stepped)
        if not ended.any():
            self._resetting = None
            return EnvStep(obs, reward, terminated, truncated, obs, stepped)
        final_obs, info = obs, self._info.take(at_end, ended.nonzero()[0])
        if same_step:
            final_obs = self._with_final_obs(obs, infos, ended, action)
        elif self._mode is AutoresetMode.NEXT_STEP:
            self._resetting = ended
        else:
            obs = self._with_first_obs(obs, ended)
        return EnvStep(obs, reward, terminated, truncated, final_obs, stepped, info=info)

    def close(self) -> None:
        """Close the vector environment."""
        if not self._closed:
            self._closed = True
            self._env.close()

    def _first_obs(self, raw_obs: object) -> Array:
        obs = self._checks.own(raw_obs, None)
        self._checks.sound_obs("first observation of an episode", obs, None)
        return obs

    def _with_final_obs(
        self, obs: Array, infos: Mapping[str, Any], ended: BoolArray, action: Array
    ) -> Array:
        """Return `obs` with first observations replaced by the last ones of the ended episodes."""
        final_obs = obs.copy()
        env_ids = np.flatnonzero(ended)
        rows = infos.get("final_obs")
        if self._structured and isinstance(rows, Mapping | tuple):  # of arrays, one row for each
            final_obs[ended] = self._checks.own(rows, action)[ended]
        else:
            # Either one object per environment, None where nothing ended, or one array of all.
            found = [] if rows is None else [rows[i] for i in env_ids]
            if not found or any(row is None for row in found):
                raise EnvironmentFault(
                    f"{self._name} declares AutoresetMode.SAME_STEP, but ended an episode without "
                    'infos["final_obs"], so the true last observation is lost. Correct its '
                    'metadata["autoreset_mode"], or make it with another autoreset mode.'
                )
            final_obs[ended] = self._checks.stack(found, env_ids.tolist(), action)
        self._checks.sound_obs("last observation of an episode", final_obs, action)
        return final_obs

    def _with_first_obs(self, final_obs: Array, ended: BoolArray) -> Array:
        """Reset ended episodes; return `final_obs` with the new observations in their places."""
        raw_obs = first_obs(self._env, self._name, options={"reset_mask": ended.copy()})
        obs = final_obs.copy()
        obs[ended] = self._first_obs(raw_obs)[ended]
        return obs


def _autoreset_mode(vector_env: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    mode = (vector_env.metadata or {}).get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        raise ConfigError(
            f'{vector_env}: metadata["autoreset_mode"] is {mode!r}, which does not say where '
            "its episodes begin. Set it to what the environment does before you pass it on: "
            'env.metadata = {**env.metadata, "autoreset_mode": '
            "gymnasium.vector.AutoresetMode.NEXT_STEP} (or SAME_STEP, or DISABLED)."
        ) from None


def _name(vector_env: VectorEnv[Any, Any, Any]) -> str:
    # EnvPool's specs are its own classes, without an id.
    return getattr(vector_env.spec, "id", None) or type(vector_env.unwrapped).__name__


class FrameStacks:
    """Corrects the first stacks of episodes, whatever the environment puts before the first frame.

    Some environments put black frames there, or those of the previous life. A replay buffer that
    stores single frames can only repeat the episode's first one, and must rebuild exactly the
    stacks that the policy saw. Writes into the arrays it is given.
    """

    def __init__(self, n_envs: int, n_frames: int) -> None:
        self._oldest = n_frames - 1
        self._age = np.zeros(n_envs, np.int64)

    def begin(self, obs: Array, begun: BoolArray | None = None) -> None:
        """Start an episode with these stacks, in these environments or in all of them."""
        self._age[... if begun is None else begun] = 0
        self._mend(obs)

    def step(self, obs: Array, begun: BoolArray | None = None) -> None:
        """Advance the stacks by one step, in which some may have begun an episode."""
        self._age += 1
        if begun is not None:
            self._age[begun] = 0
        self._mend(obs)

    def _mend(self, obs: Array) -> None:
        for i in np.flatnonzero(self._age < self._oldest):
            first = self._oldest - self._age[i]
            obs[i, :first] = obs[i, first]
