"""Gymnasium environments by id or from a user's factory, as batches.

Finds and makes environments; `batch.py` and `vector.py` step them.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeGuard, cast

import gymnasium
from gymnasium.vector import VectorEnv

from asyncrl.core.declared import Count, check_declared
from asyncrl.core.env import BatchEnv, EnvDescription, EnvSource
from asyncrl.core.errors import ConfigError
from asyncrl.core.settings import load_object
from asyncrl.envs.batch import PlainBatch
from asyncrl.envs.infos import parse_keys
from asyncrl.envs.vector import VectorBatch
from asyncrl.envs.wrap import parse_wrappers, wrap

logger = logging.getLogger(__name__)

_forwarded: set[str] = set()


def forward_warnings(code: str = "") -> None:
    """Log MuJoCo's warnings from now on, if it is loaded and has no other handler.

    `code` names the source of the next environment: if that is MuJoCo, it is loaded now.
    """
    if "mujoco" in code:
        with contextlib.suppress(ImportError):  # making the environment reports what is missing
            importlib.import_module("mujoco")
    mujoco = sys.modules.get("mujoco")
    if mujoco is not None and mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_forward)


def _forward(text: str) -> None:
    if text not in _forwarded:
        _forwarded.add(text)
        # Deprecations are for the model's author to fix.
        logger.log(logging.DEBUG if "deprecated" in text else logging.WARNING, "MuJoCo: %s", text)


PlainOrVectorEnv = gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]
"""What a user's factory may return."""

_RETURN = "let it return a gymnasium.Env or a gymnasium.vector.VectorEnv"

ATARI = "ALE/"
"""Prefix of the ids of Atari games."""

_EXTRAS = {"/box2d": "box2d", "/mujoco": "mujoco", ATARI: "atari", "envpool:": "envpool"}
"""Part of an environment's source -> the extra of asyncrl that installs it."""

_PACKAGES = {
    "gymnasium_robotics:": "gymnasium-robotics 'mujoco==3.10.0'",
    "minigrid:": "minigrid",
    "phys2d/": "'gymnasium[jax]'",
    "tabular/": "'gymnasium[jax]'",
    "shimmy:dm_control/": "'shimmy[dm-control]' 'dm-control==1.0.43' 'mujoco==3.10.0'",
}
"""Prefix of ids -> what installs these environments, in versions that fit together."""

_MOST_FOR_EPISODES = 64
"""Environments that are built at once to play a number of episodes."""

_HOMES = {ATARI: "asyncrl.envs.atari", "envpool:": "asyncrl.envs.envpool"}
"""Prefix of ids that are not Gymnasium's -> the module that makes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig:
    """Which environments an actor steps, and how many."""

    id: str
    """A Gymnasium id such as `CartPole-v1`. `package:id` first imports the package that registers
    it, as in `minigrid:MiniGrid-Empty-5x5-v0`. `module:factory` names a function that returns a
    single or a vector environment. `ALE/Pong-v5` gets the usual preprocessing, see `envs/atari.py`.
    `envpool:Pong-v5` is EnvPool's."""

    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment."""

    n_envs: Count = 1
    """Environments stepped together."""

    vectorization: Literal["batch", "native"] = "batch"
    """`batch` steps single environments one after another; `native` uses the environment's own
    vector form, and passes `num_envs` to a factory. Atari games and EnvPool's environments are
    always `native`."""

    info: tuple[str, ...] = ()
    """Numbers of the environment's info to record for each episode, by key: its last value, as
    `distance`, or a `sum:`, `mean:`, `min:` or `max:` over the episode, as `sum:energy`."""

    wrappers: tuple[str, ...] = ()
    """Wrappers to apply to each environment, the first one innermost, by import path:
    `module:Wrapper`, or with settings `module:Wrapper(name=value)`. With `native` vectorization
    they wrap the whole vector environment."""

    def __post_init__(self) -> None:
        check_declared(self, "env")
        parse_keys(self.info)
        parse_wrappers(self.wrappers)
        if not self.id:
            raise ConfigError("env.id is empty; give a Gymnasium id or module:factory")
        if self._home() is not None:
            if self.info:
                raise ConfigError(
                    f"env.info is {list(self.info)}, and {self.id!r} reports no numbers in its "
                    "infos; leave it empty"
                )
            if self.wrappers:
                raise ConfigError(
                    f"env.wrappers is {list(self.wrappers)}, and {self.id!r} is already "
                    "preprocessed; leave it empty, or wrap the environment in a custom factory"
                )
            object.__setattr__(self, "vectorization", "native")

    @property
    def build(self) -> EnvSource:
        """What makes the environments; call it in the process that will step them."""
        return _ConfigSource(self)

    def build_for(self, episodes: int) -> EnvSource:
        """Return what makes environments for this number of episodes: one each, at most 64 single.

        Episodes of those begin alike for any number of environments. Those of a vector environment
        may not. A factory of one decides itself how many it holds.
        """
        return _ConfigSource(self, episodes)

    def _build(self, episodes: int) -> BatchEnv:
        count = min(episodes, _MOST_FOR_EPISODES)
        if self.vectorization == "batch":
            return _build_batch(self._make, self.n_envs, self.info, count)
        if episodes:
            # Atari games seed each of their environments, whatever their number.
            return replace(self, n_envs=count if self.id.startswith(ATARI) else episodes).build()
        if (home := self._home()) is not None:
            return cast(BatchEnv, _make_known(self, home, "build"))
        return as_batch_env(self.make_vector(), self.n_envs, self.info)

    def make(self) -> PlainOrVectorEnv:
        """Make one single environment, or a vector environment if the id or a setting says so."""
        return self.make_vector() if self.vectorization == "native" else self._make()

    def make_plain(self) -> gymnasium.Env[Any, Any]:
        """Make one single environment."""
        if self._home() is not None:
            raise ConfigError(f"{self.id!r} has a vector form only; use env.vectorization=native")
        env = self._make()
        if not _is_plain(env):
            _close(env)
            raise ConfigError(f"{self.id!r} makes {_shown(env)}, not a gymnasium.Env")
        return env

    def make_vector(self) -> VectorEnv[Any, Any, Any]:
        """Make all `n_envs` at once, in the environment's own vector form."""
        if (home := self._home()) is not None:
            env = _make_known(self, home, "make_vector")
        elif _is_import_path(self.id):
            env = _call_factory(self.id, {**self.kwargs, "num_envs": self.n_envs})
        else:
            make = partial(
                gymnasium.make_vec,
                self.id,
                num_envs=self.n_envs,
                vectorization_mode="vector_entry_point",
                **self.kwargs,
            )
            env = _make_registered(self.id, make)
        if not isinstance(env, VectorEnv):
            _close(env)
            raise ConfigError(
                f"{self.id!r} makes {_shown(env)}, and env.vectorization=native needs a "
                "gymnasium.vector.VectorEnv; use env.vectorization=batch"
            )
        return wrap(env, self.wrappers)

    def _home(self) -> str | None:
        return next((home for start, home in _HOMES.items() if self.id.startswith(start)), None)

    def _make(self) -> PlainOrVectorEnv:
        if _is_import_path(self.id):
            made: PlainOrVectorEnv = _call_factory(self.id, self.kwargs)
            return wrap(made, self.wrappers)
        # Gymnasium's checker costs time at every step; the batches have their own checks.
        make = partial(gymnasium.make, self.id, disable_env_checker=True, **self.kwargs)
        env: gymnasium.Env[Any, Any] = _make_registered(self.id, make)
        return wrap(env, self.wrappers)


def as_batch_env(
    env: PlainOrVectorEnv, n_envs: int | None = None, info: Sequence[str] = ()
) -> BatchEnv:
    """Return a batch of a single environment, or of a vector environment's.

    `info` are keys as in `EnvConfig.info`.

    Raises `ConfigError`, and closes the environment, if it does not hold `n_envs`.
    """
    with ExitStack() as undo:
        if not isinstance(env, gymnasium.Env | VectorEnv):
            raise ConfigError(f"the factory returned {env!r:.80}; {_RETURN}")
        undo.callback(env.close)
        count = env.num_envs if isinstance(env, VectorEnv) else 1
        if n_envs not in {None, count}:
            raise ConfigError(f"{env} holds {count} environments, but n_envs is {n_envs}")
        batch: BatchEnv
        if isinstance(env, VectorEnv):
            batch = VectorBatch(env, info)
        else:
            batch = PlainBatch([lambda: env], 1, info)
        undo.pop_all()
    return batch


def make_batch(
    make: Callable[[], PlainOrVectorEnv], n_envs: int, info: Sequence[str] = ()
) -> EnvSource:
    """Return what builds a batch from a user's factory, in the process that calls it.

    A factory of single environments is called `n_envs` times. A factory of a vector environment is
    called once; `n_envs` is then 1, or the number of environments that it holds. `info` are keys as
    in `EnvConfig.info`.
    """
    if not callable(make):
        raise ConfigError(
            f"make_batch takes a function that makes an environment, got {make!r:.80}; use for "
            f"instance make_batch(lambda: MyEnv(), {n_envs}), or EnvConfig(id=...).build"
        )
    if n_envs < 1:
        raise ConfigError(f"n_envs must be at least 1, got {n_envs}")
    parse_keys(info)
    return _FactorySource(make, n_envs, tuple(info))


def _build_batch(
    make: Callable[[], PlainOrVectorEnv], n_envs: int, info: Sequence[str], singles: int = 0
) -> BatchEnv:
    """Build a batch; `singles` says of how many single environments, 0 that `n_envs` does."""
    first = make()
    forward_warnings()
    if _is_plain(first):
        others: list[Any] = [make] * ((singles or n_envs) - 1)
        return PlainBatch([lambda: first, *others], 1 + len(others), info)
    return as_batch_env(first, None if n_envs == 1 or singles else n_envs, info)


@dataclass(frozen=True, slots=True)
class _FactorySource(EnvSource):
    """Of a user's factory, which makes a single or a vector environment."""

    n_envs: int
    info: tuple[str, ...]
    singles: int = 0
    """As in `_build_batch`."""

    def __call__(self) -> BatchEnv:
        return _build_batch(self.of, self.n_envs, self.info, self.singles)

    def for_episodes(self, episodes: int) -> EnvSource:
        return replace(self, singles=min(episodes, _MOST_FOR_EPISODES))

    def describe(self, *, goals: bool = False) -> EnvDescription:
        return _describe_one(self.of, self.n_envs, goals=goals)


@dataclass(frozen=True, slots=True)
class _ConfigSource(EnvSource):
    """Of an `EnvConfig`."""

    of: EnvConfig
    episodes: int = 0
    """As for `EnvConfig.build_for`; 0 builds as many as the config says."""

    def __call__(self) -> BatchEnv:
        return self.of._build(self.episodes)  # noqa: SLF001

    def for_episodes(self, episodes: int) -> EnvSource:
        return replace(self, episodes=episodes) if self.of.vectorization == "batch" else self

    def with_kwargs(self, kwargs: Mapping[str, Any]) -> EnvSource:
        return replace(self, of=replace(self.of, kwargs={**self.of.kwargs, **kwargs}))

    def describe(self, *, goals: bool = False) -> EnvDescription:
        if self.episodes or self.of.vectorization == "native":
            return EnvSource.describe(self, goals=goals)
        return _describe_one(self.of.make, self.of.n_envs, goals=goals)


def _describe_one(make: Callable[[], Any], n_envs: int, *, goals: bool) -> EnvDescription:
    """Describe the environments of a factory; makes only one of single ones."""
    first = make()
    forward_warnings()
    plain = _is_plain(first)
    source = EnvSource(lambda: as_batch_env(first, None if plain or n_envs == 1 else n_envs))
    seen = source.describe(goals=goals)
    return seen._replace(n_envs=n_envs) if plain else seen


_SKIP_NAMES = ("frame_skip", "_frameskip", "frameskip")


def frame_skip(config: EnvConfig) -> int:
    """Return how many frames one agent step takes: 4 in most Atari games, 5 in HalfCheetah."""
    env: Any = config.make_vector() if config.vectorization == "native" else config.make_plain()
    with closing(env):
        skip = 1
        layer: Any = env
        while layer is not None:
            own = getattr(layer, "__dict__", {})
            skip *= next((own[n] for n in _SKIP_NAMES if isinstance(own.get(n), int)), 1)
            layer = own.get("env")
        if skip == 1 and env.spec is not None:
            # A vector environment of C++ keeps it to itself.
            asked = {**env.spec.kwargs, **config.kwargs}
            skip = next((asked[n] for n in _SKIP_NAMES if isinstance(asked.get(n), int)), 1)
    return skip


def _is_import_path(name: str) -> bool:
    """Whether it is like `my_module:make_env`, and not like Gymnasium's `my_module:MyEnv-v0`."""
    module, colon, attribute = name.partition(":")
    return bool(colon and module) and all(part.isidentifier() for part in attribute.split("."))


def _call_factory(path: str, kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401  # the user's
    factory = load_object(path)
    if not callable(factory):
        raise ConfigError(f"{path!r} is {_shown(factory)}, not a function that makes environments")
    forward_warnings(path)
    with _noting(path):
        env = factory(**kwargs)
    if not isinstance(env, gymnasium.Env | VectorEnv):
        raise ConfigError(f"{path!r} returned {env!r:.80}; {_RETURN}")
    return env


def _make_known(config: EnvConfig, home: str, what: str) -> Any:  # noqa: ANN401  # either kind
    def make() -> Any:  # noqa: ANN401
        return getattr(importlib.import_module(home), what)(config.id, config.n_envs, config.kwargs)

    return _make_registered(config.id, make)


def _make_registered(env_id: str, make: Callable[[], Any]) -> Any:  # noqa: ANN401  # either kind
    forward_warnings(_code(env_id))
    try:
        with _noting(env_id):
            return make()
    except (gymnasium.error.Error, ImportError) as error:
        hint = _hint(env_id, error)
        raise ConfigError(f"cannot make environment {env_id!r}: {error}{hint}") from error


@contextmanager
def _noting(env_id: str) -> Iterator[None]:
    """Add a note to errors: which environment was being made."""
    try:
        yield
    except Exception as error:
        error.add_note(f"asyncrl: while making environment {env_id!r}")
        wrong_call = ImportError | TypeError | ValueError | gymnasium.error.Error
        if (packages := _packages_of(env_id)) and not isinstance(error, wrong_call):
            error.add_note(f"asyncrl: these versions fit together: pip install {packages}")
        raise


def _hint(env_id: str, error: Exception) -> str:
    """Return advice on how to get an environment that was not found."""
    unknown = gymnasium.error.NameNotFound | gymnasium.error.NamespaceNotFound
    if isinstance(error, unknown) and ":" not in env_id:
        if "." in env_id:
            return " A function of your own is written module:function, as in my_envs:make_env."
        return (
            f" If another package registers it, write PACKAGE:{env_id}, which imports that package "
            "first."
        )
    if not isinstance(error, ImportError | gymnasium.error.DependencyNotInstalled):
        return ""
    code = _code(env_id)
    for part, extra in _EXTRAS.items():
        if part in code:
            return f" (pip install 'asyncrl[{extra}]' installs these environments)"
    packages = _packages_of(env_id)
    return f" (pip install {packages} installs these environments)" if packages else ""


def _packages_of(env_id: str) -> str:
    """Return the packages that have an environment, and what they need; "" if unknown."""
    return next((needed for part, needed in _PACKAGES.items() if env_id.startswith(part)), "")


def _code(env_id: str) -> str:
    """Return an id and where its code is."""
    spec = gymnasium.registry.get(env_id)
    return f"{env_id} {spec.entry_point if spec is not None else ''}".replace(".", "/")


def _is_plain(env: object) -> TypeGuard[gymnasium.Env[Any, Any]]:
    # EnvPool's are both.
    return isinstance(env, gymnasium.Env) and not isinstance(env, VectorEnv)


def _close(env: object) -> None:
    if isinstance(env, gymnasium.Env | VectorEnv):
        env.close()


def _shown(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
