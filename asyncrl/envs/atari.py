"""Atari games with the standard preprocessing, by ale_py's own vector environment.

Frame skip with the maximum over the last two frames, 84x84 greyscale, four stacked frames, random
no-ops at the start (Mnih et al. 2015); sticky actions and whole games as episodes (Machado et al.
2018). The learner's rewards and episode ends may differ from the game's, so the score is passed
along: returns and evaluations are always those of whole games, unclipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import ale_py
import gymnasium
import numpy as np
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode

from asyncrl.core.declared import Count, Natural, Share, check_declared
from asyncrl.core.env import EnvSpec, EnvStep
from asyncrl.core.errors import ConfigError
from asyncrl.core.settings import from_plain
from asyncrl.core.types import Array, BoolArray, IntArray
from asyncrl.envs.vector import FrameStacks, VectorBatch

gymnasium.register_envs(ale_py)

_FPS, _SCREEN, _SEEN = 60, (210, 160), 84
"""Frames of a game per second, height and width of its screen, and both as agents see them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtariConfig:
    """The preprocessing options."""

    clip_rewards: bool = True
    """Clip the learner's rewards to [-1, 1], so that one learning rate suits all games."""

    life_loss: bool = False
    """Report the loss of a life to the learner as the end of an episode. The game continues."""

    repeat_action_probability: Share = 0.25
    """Sticky actions: the probability, at each frame, that the game repeats the last action."""

    frame_skip: Count = 4
    """Frames for which an action is repeated."""

    frame_stack: Count = 4
    """Frames per observation, newest last."""

    noop_max: Natural = 30
    """Maximum number of no-op frames at the start of a game."""

    fire_reset: bool = True
    """Press FIRE once at the start of games that have it."""

    full_action_space: bool = False
    """Offer all 18 actions, not only those that have an effect in this game."""

    max_frames: Count = 108_000
    """Frame limit of a game. The default is 30 minutes of play."""

    num_threads: Count = 1
    """Threads that step the games of one actor. Each actor is a separate process, so 1 is usually
    enough."""

    def __post_init__(self) -> None:
        check_declared(self)


def build(env_id: str, n_envs: int, settings: Mapping[str, Any]) -> AtariBatch:
    """Make games of one kind, named as in `ALE/Pong-v5`; `settings` are fields of `AtariConfig`."""
    config = _config(env_id, settings)
    return AtariBatch(_Games(env_id, n_envs, config), config)


def make_vector(env_id: str, n_envs: int, settings: Mapping[str, Any]) -> AtariVectorEnv:
    """Make the bare vector environment below, which only knows whole games and scores."""
    return _Games(env_id, n_envs, _config(env_id, settings))


class AtariBatch:
    """A `BatchEnv` of Atari games.

    After an episode end as the learner sees it, by a lost life or by the game, the next observation
    starts a new stack: all its frames are the newest one.
    """

    checks_itself = True

    def __init__(self, games: _Games, config: AtariConfig) -> None:
        self._games = games
        self._env = VectorBatch(games)
        self._config = config
        self._stacks = FrameStacks(games.num_envs, config.frame_stack)

    @property
    def spec(self) -> EnvSpec:
        """Spaces of one game."""
        return self._env.spec

    @property
    def n_envs(self) -> int:
        """Number of games."""
        return self._env.n_envs

    @property
    def n_frames(self) -> int:
        """Frames per observation; a stack can be rebuilt from the newest frame of each."""
        return self._config.frame_stack

    def reset(self, seed: int) -> Array:
        """Restart all games; game i is seeded with `seed + i`."""
        obs = self._env.reset(seed)
        self._stacks.begin(obs)
        return obs

    def step(self, action: Array) -> EnvStep:
        """Step all games; those that ended restart at once."""
        lives = self._games.lives
        out = self._env.step(action)
        over = out.terminated | out.truncated
        ended, terminated = over, out.terminated
        if self._config.life_loss:
            lost = (self._games.lives < lives) & ~over
            ended, terminated = over | lost, terminated | lost
        obs = self._mended(out, ended)
        reward = np.clip(out.reward, -1, 1) if self._config.clip_rewards else out.reward
        return out._replace(
            obs=obs, reward=reward, terminated=terminated, score=out.reward, over=over
        )

    def close(self) -> None:
        """Close the games."""
        self._env.close()

    def _mended(self, out: EnvStep, ended: BoolArray) -> Array:
        self._stacks.step(out.final_obs)
        if not ended.any():
            return out.final_obs
        # If no game has ended, both are the same array: a lost life needs a second one.
        obs = out.final_obs.copy() if out.obs is out.final_obs else out.obs
        self._stacks.begin(obs, ended)
        return obs


class Shows(Protocol):
    """Takes pictures of several games."""

    def begin(self, place: int) -> None:
        """Show the next game at this place."""
        ...

    def show(self, place: int, render: Callable[[], Array], *, over: bool) -> None:
        """Take a picture of the game at this place; `over` marks its last one."""
        ...


class FilmedAtari(AtariBatch):
    """Games that other emulators play at the same time in colour: same seeds and same actions."""

    def __init__(self, env_id: str, n_envs: int, settings: Mapping[str, Any], shows: Shows) -> None:
        config = _config(env_id, settings)
        super().__init__(_Games(env_id, n_envs, config), config)
        self._screens = VectorBatch(_Games(env_id, n_envs, config, colour=True))
        self._shows = shows
        self.fps = _FPS / config.frame_skip
        """Pictures per second, which are those of the games at their usual speed."""

    def reset(self, seed: int) -> Array:
        """Restart all games, and show the next ones."""
        self._screens.reset(seed)
        for place in range(self.n_envs):
            self._shows.begin(place)
        return super().reset(seed)

    def step(self, action: Array) -> EnvStep:
        """Step all games, and show them."""
        shown = self._screens.step(action)
        for i, over in enumerate(shown.terminated | shown.truncated):
            self._shows.show(i, partial(shown.final_obs.__getitem__, (i, -1)), over=bool(over))
        return super().step(action)

    def close(self) -> None:
        """Close the games."""
        self._screens.close()
        super().close()


def _config(env_id: str, settings: Mapping[str, Any]) -> AtariConfig:
    try:
        return from_plain(AtariConfig, dict(settings))
    except ConfigError as error:
        raise ConfigError(
            f"{env_id!r}: {error}. These are settings of the standard preprocessing; the bare "
            f"environment is 'ale_py:{env_id}'"
        ) from error


class _Games(AtariVectorEnv):
    """ale_py's vector environment, with our own clipping and handling of lives.

    Its `life_loss_info` leaves uninitialised memory in `final_obs` at the loss of a life, and its
    `episodic_life` ends the whole game there.
    """

    lives: IntArray
    """Lives of each game after the last step."""

    def __init__(
        self, env_id: str, n_envs: int, config: AtariConfig, *, colour: bool = False
    ) -> None:
        self.spec = gymnasium.spec(env_id)
        # A separate dict: ale_py would write into the one shared by all Gymnasium vector
        # environments.
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        super().__init__(
            self.spec.kwargs["game"],
            n_envs,
            autoreset_mode=AutoresetMode.SAME_STEP,
            num_threads=config.num_threads,
            max_num_frames_per_episode=config.max_frames,
            repeat_action_probability=config.repeat_action_probability,
            full_action_space=config.full_action_space,
            frameskip=config.frame_skip,
            noop_max=config.noop_max,
            use_fire_reset=config.fire_reset,
            reward_clipping=False,
            stack_num=1 if colour else config.frame_stack,
            img_height=_SCREEN[0] if colour else _SEEN,
            img_width=_SCREEN[1] if colour else _SEEN,
            grayscale=not colour,
        )

    def reset(
        self, *, seed: int | Array | None = None, options: dict[str, Any] | None = None
    ) -> Any:  # noqa: ANN401  # ale_py leaves open what observations are
        if isinstance(seed, int):  # one for each, below 2**31, the limit of the emulators
            seed = (seed + np.arange(self.num_envs)) % 2**31
        obs, infos = super().reset(seed=seed, options=options)
        self.lives = infos["lives"]
        return obs, infos

    def step(self, actions: Array) -> tuple[Array, Array, BoolArray, BoolArray, dict[str, Any]]:
        obs, rewards, terminated, truncated, infos = super().step(actions)
        self.lives = infos["lives"]
        return obs, rewards, terminated, truncated, infos

    def close_extras(self) -> None:
        """End its threads, and the emulators with them."""
        del self.ale
