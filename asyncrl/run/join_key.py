"""The file with which a host joins a run: where the learner is, its key, the joining key.

Every reader can join the run, so it is for one user only. It holds the run's settings as
well, which a host builds its environments from: like a config, load it only from a source that you
trust. It is worthless once the run has ended.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from asyncrl.core.errors import ConfigError
from asyncrl.transport.zeromq import Curve

_LEARNER_ONLY = ("env_schedule",)
"""Settings that no host needs, and that JSON cannot represent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinKey:
    """What a host needs to reach a run's learner, and to build its environments."""

    address: str
    """Where other machines reach the learner: `tcp://NAME:PORT`."""

    curve: Curve = field(repr=False)
    """The joining key."""

    spaces: Mapping[str, Any]
    """The environments' spaces, for actors whose environment is not made here: `plain_spec`."""

    settings: Mapping[str, Any] | None = None
    """The run's `config.yaml`; None if the run was started from Python."""

    plan: Mapping[str, Any] | None = None
    """An `ActorPlan` for programs that connect; None if their actors need torch."""

    def save(self, path: Path) -> None:
        """Write it, readable for this user only; it replaces the key of an earlier start."""
        settings = self.settings
        if settings is not None:
            settings = {k: v for k, v in settings.items() if k not in _LEARNER_ONLY}
        keys = {name: getattr(self.curve, name).decode() for name in ("server", "public", "secret")}
        draft = path.with_name(f".{path.name}")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            content = {"address": self.address, **keys, "spaces": self.spaces}
            json.dump({**content, "settings": settings, "plan": self.plan}, file, indent=1)
        draft.rename(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read it; raise `ConfigError` if it is none, or if others can read it."""
        try:
            with path.open(encoding="utf-8") as file:
                _check_private(path, os.fstat(file.fileno()))
                content = json.load(file)
        except FileNotFoundError as error:
            raise ConfigError(
                f"there is no join key {path}. The run writes it when it starts, with --listen "
                "tcp://ADDRESS, and removes it when it ends"
            ) from error
        except ConfigError:
            raise
        except IsADirectoryError as error:
            raise ConfigError(f"{path} is a directory; name its file join.key") from error
        except ValueError as error:
            raise ConfigError(f"{path} is no join key: it is not JSON") from error
        except OSError as error:
            raise ConfigError(f"cannot read the join key {path}: {error.strerror}") from error
        match content:
            case {"address": str(address), "spaces": dict(spaces), "settings": settings} if all(
                isinstance(content.get(name), str) and len(content[name]) == 40
                for name in ("server", "public", "secret")
            ):
                keys = {n: content[n].encode() for n in ("server", "public", "secret")}
                return cls(
                    address=address,
                    curve=Curve(**keys),
                    spaces=spaces,
                    settings=settings,
                    plan=content.get("plan"),
                )
        raise ConfigError(f"{path} is no join key: it lacks an address or a key")

    def remove(self, path: Path) -> None:
        """Delete the file when the run has ended, unless it is another run's key by now."""
        with suppress(OSError, ValueError):
            if self.curve.secret.decode() in path.read_text(encoding="utf-8"):
                path.unlink()


def _check_private(path: Path, seen: os.stat_result) -> None:
    mode = stat.S_IMODE(seen.st_mode)
    if mode & 0o077:
        raise ConfigError(
            f"the join key {path} can be read by others (mode {mode:04o}), who could join the run "
            f"with it; run: chmod 600 {path}"
        )
    if seen.st_uid not in {0, os.geteuid()}:
        raise ConfigError(f"the join key {path} belongs to another user, who could change it")
