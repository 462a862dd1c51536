"""Numbers that environments report in their infos, collected by episode.

Success is collected without being asked for; other keys are those of `EnvConfig.info`. Knows
nothing about rewards and observations.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from asyncrl.core.env import SUCCESS
from asyncrl.core.env_checks import as_array
from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array, BoolArray, IntArray

logger = logging.getLogger(__name__)

Infos = Mapping[str, Any] | Sequence[Any]
"""The infos of a step: one for each environment, or the arrays of a vector environment."""

_SUCCESS_KEYS = ("is_success", "success")
"""Keys under which infos report success: Gymnasium-Robotics has both, Meta-World the latter."""

_REDUCTIONS: dict[str, tuple[Callable[..., Any], float]] = {
    "sum": (np.add, 0.0),
    "mean": (np.add, 0.0),
    "min": (np.fmin, np.nan),
    "max": (np.fmax, np.nan),
}
"""How the values of an episode become one, and what it starts from."""


class _Key(NamedTuple):
    """One key to collect; `fold` is empty for the last value of an episode."""

    key: str
    fold: str

    @property
    def name(self) -> str:
        """Name of the metric, without its prefix."""
        return f"{self.key}_{self.fold}" if self.fold else self.key


def parse_keys(keys: Iterable[str]) -> tuple[_Key, ...]:
    """Return the keys of `EnvConfig.info`; raise `ConfigError` if one is not of the form."""
    parsed = []
    for text in keys:
        fold, colon, key = text.rpartition(":")
        if not key or bool(colon) != (fold in _REDUCTIONS):
            raise ConfigError(
                f"env.info has {text!r}; expected the key of a number in the environment's info, "
                f"as `distance`, or its {', '.join(_REDUCTIONS)} over an episode, as `sum:energy`"
            )
        parsed.append(_Key(key, fold))
    return tuple(parsed)


class EpisodeInfo:
    """Collects the numbers of each episode, in a batch of environments."""

    def __init__(self, keys: Iterable[str], n_envs: int, where: str) -> None:
        """Set up for `keys` as in `EnvConfig.info`; `where` names the environments in warnings."""
        parsed = parse_keys(keys)
        self._last = [key for key in parsed if not key.fold]
        self._reductions = [(key, _Reduction(key.fold, n_envs)) for key in parsed if key.fold]
        self._all_envs = np.arange(n_envs)
        self._where = where
        self._unseen = {key.key for key in parsed}

    @property
    def every_step(self) -> bool:
        """Whether each step must be added: not if only the ends of episodes are read."""
        return bool(self._reductions)

    def begin(self) -> None:
        """Begin new episodes in all environments."""
        for _, fold in self._reductions:
            fold.begin(self._all_envs)

    def add(
        self, infos: Infos, at_end: Infos, ended: BoolArray, stepped: BoolArray | None = None
    ) -> None:
        """Add the numbers of a step; where an episode ended, those are in `at_end`."""
        for key, fold in self._reductions:
            values = _read(infos, key.key, self._all_envs)
            if at_end is not infos:
                values[ended] = _read(at_end, key.key, ended.nonzero()[0])
            if stepped is not None:
                values[~stepped] = np.nan
            fold.add(values)

    def take(self, infos: Infos, ended: IntArray) -> Mapping[str, Array] | None:
        """Return the numbers of episodes that ended with these infos, as in `EnvStep.info`."""
        found = {}
        for name in _SUCCESS_KEYS if _has_any(infos, _SUCCESS_KEYS, ended) else ():
            if _any(success := _read(infos, name, ended)):
                found[SUCCESS] = success
                break
        found |= {key.name: _read(infos, key.key, ended) for key in self._last}
        for key, fold in self._reductions:
            found[key.name] = fold.values()[ended]
            fold.begin(ended)
        if self._unseen:
            self._warn_of_unseen(infos, ended)
        return {name: self._rows(ended, said) for name, said in found.items() if _any(said)} or None

    def _rows(self, env_ids: IntArray, values: Array) -> Array:
        """Return one row for each environment, NaN in those that `values` are not of."""
        rows = np.full(len(self._all_envs), np.nan, np.float32)
        rows[env_ids] = values
        return rows

    def _warn_of_unseen(self, infos: Infos, ended: IntArray) -> None:
        """Warn once of keys that the first episodes ended without."""
        unseen = sorted(key for key in self._unseen if not _any(_read(infos, key, ended)))
        info = infos if isinstance(infos, Mapping) else infos[ended[0]]
        names = map(str, info) if isinstance(info, Mapping) else ()
        known = sorted(name for name in names if not name.startswith("_"))
        for key in unseen:
            logger.warning(
                "env.info names %r, but %s ended an episode without a number of that name in its "
                "info; it has %s",
                key,
                self._where,
                ", ".join(map(repr, known)) or "no keys",
            )
        self._unseen = set()


class _Reduction:
    """A sum, mean, minimum or maximum over each episode."""

    def __init__(self, fold: str, n_envs: int) -> None:
        self._combine, self._start = _REDUCTIONS[fold]
        self._mean = fold == "mean"
        self._total = np.full(n_envs, self._start)
        self._count = np.zeros(n_envs, np.int64)

    def begin(self, env_ids: IntArray) -> None:
        self._total[env_ids] = self._start
        self._count[env_ids] = 0

    def add(self, values: Array) -> None:
        there = ~np.isnan(values)
        self._total[there] = self._combine(self._total[there], values[there])
        self._count += there

    def values(self) -> Array:
        """Return the number of each episode so far; NaN where there was none."""
        counts = np.where(self._count, self._count, np.nan)
        return self._total / counts if self._mean else self._total + 0.0 * counts


def _has_any(infos: Infos, keys: Sequence[str], env_ids: IntArray) -> bool:
    """Whether any info has any of these keys: much faster than to read what is not there."""
    each = [infos] if isinstance(infos, Mapping) else [infos[i] for i in env_ids.tolist()]
    return any(key in info for info in each if isinstance(info, Mapping) for key in keys)


def _read(infos: Infos, key: str, env_ids: IntArray) -> Array:
    """Return a number of each of these environments; NaN where its info has none."""
    if isinstance(infos, Mapping):  # a vector environment's, which masks `key` by `_key`
        found = as_array(infos.get(key))
        if found.ndim == 0:
            return np.full(len(env_ids), np.nan, np.float32)
        mask = as_array(infos.get(f"_{key}", True))
        there = mask[env_ids] if mask.ndim else np.full(len(env_ids), bool(mask))
        said = (_number(found[i]) if has else np.nan for i, has in zip(env_ids, there, strict=True))
    else:
        each = (infos[i] for i in env_ids)
        said = (_number(i.get(key)) if isinstance(i, Mapping) else np.nan for i in each)
    return np.fromiter(said, np.float32, len(env_ids))


def _number(value: object) -> float:
    """Return a finite number, or that of an array of one; NaN for anything else."""
    if value is None:
        return np.nan
    found = as_array(value)
    number = float(found.item()) if found.size == 1 and found.dtype.kind in "biuf" else np.nan
    return number if np.isfinite(number) else np.nan


def _any(values: Array) -> bool:
    return not np.isnan(values).all()
