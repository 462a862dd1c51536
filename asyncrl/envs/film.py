"""Environments whose steps are written as a video, one frame each, or shown in a window.

Frames are those of Gymnasium's own rendering, or of Atari's emulators, encoded as H.264 by PyAV in
this process. The file appears under its name when it is complete.
"""

from __future__ import annotations

import importlib.util
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from asyncrl.core.env import BatchEnv
from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array, BoolArray
from asyncrl.envs.batch import PlainBatch
from asyncrl.envs.gym import ATARI, EnvConfig, as_batch_env

_RENDERS, _SHOWS = "rgb_array", "human"
_FPS = 30
"""Of environments that declare no rate."""

_SUFFIX = ".mp4"


def check_video(path: Path) -> None:
    """Raise `ConfigError` if a video cannot be written there, before anything is played."""
    if path.suffix != _SUFFIX:
        raise ConfigError(f"--video is {path}; a video is an {_SUFFIX} file, as video{_SUFFIX}")
    if not path.parent.is_dir():
        raise ConfigError(f"--video is {path}, and there is no directory {path.parent}")
    check_video_package("--video")


def check_video_package(setting: str) -> None:
    """Raise `ConfigError` if the package that encodes is missing."""
    if importlib.util.find_spec("av") is None:
        raise ConfigError(f"{setting} needs the package av: pip install 'asyncrl[video]'")


@contextmanager
def filmed(config: EnvConfig, path: Path, count: int = 1) -> Iterator[BatchEnv]:
    """Make `count` environments, and write each of their steps to a video while the block runs.

    Several are shown side by side. One whose episode has ended keeps its last picture until all are
    reset with a seed. An error in the block leaves no file.
    """
    draft = path.with_name(f".{path.name}")
    with ExitStack() as closing:
        closing.callback(draft.unlink, missing_ok=True)
        batch, grid, fps = _with_pictures(config, count, closing)
        grid.film = film = _Film(draft, fps)
        yield batch
        batch.close()
        film.close()
        draft.replace(path)


def try_picture(config: EnvConfig) -> None:
    """Raise `ConfigError` if an environment cannot be filmed."""
    with ExitStack() as closing:
        _with_pictures(config, 1, closing)


def _with_pictures(
    config: EnvConfig, count: int, closing: ExitStack
) -> tuple[BatchEnv, _Grid, float]:
    """Return environments, the grid that shows their pictures, and pictures per second."""
    # No window is opened; without this, pygame complains where there is no display.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    grid = _Grid(count)
    if config.id.startswith(ATARI):
        from asyncrl.envs.atari import FilmedAtari  # noqa: PLC0415  # an optional package

        games = FilmedAtari(config.id, count, config.kwargs, grid)
        closing.callback(games.close)
        return games, grid, games.fps
    envs = []
    for _ in range(count):
        envs.append(_rendering(config, _RENDERS))
        closing.callback(envs[-1].close)
    makers = [partial(_Filmed, env, grid, place) for place, env in enumerate(envs)]
    fps = envs[0].metadata.get("render_fps", _FPS)
    return _FilmedBatch(makers, count, config.info), grid, fps


def check_window() -> None:
    """Raise `ConfigError` if this process clearly cannot open a window."""
    names = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    if sys.platform == "linux" and not any(map(os.environ.get, names)):
        raise ConfigError(
            "a window needs a display, and neither DISPLAY nor WAYLAND_DISPLAY is set; write a "
            f"film with asyncrl eval RUN_DIR --video FILE{_SUFFIX} instead"
        )


def in_window(config: EnvConfig) -> BatchEnv:
    """Make one environment that shows its steps in a window."""
    return as_batch_env(_rendering(config, _SHOWS), info=config.info)


def _rendering(config: EnvConfig, mode: str) -> gymnasium.Env[Any, Any]:
    kwargs = {**config.kwargs, "render_mode": mode}
    config = replace(config, kwargs=kwargs, n_envs=1)
    if config.vectorization == "native":
        raise ConfigError(
            f"{config.id} has a vector form only, which renders no single environment"
        )
    try:
        env = config.make_plain()
    except TypeError as error:
        if not ("render_mode" in str(error) or "takes no arguments" in str(error)):
            raise
        raise _no_picture(config.id, mode, "takes no argument render_mode") from error
    with ExitStack() as undo:
        undo.callback(env.close)
        if env.render_mode != mode:
            raise _no_picture(config.id, mode, f"renders {env.render_mode!r}, not {mode!r}")
        if mode == _RENDERS:
            _try(env, config.id)
        undo.pop_all()
    return env


def _try(env: gymnasium.Env[Any, Any], name: str) -> None:
    """Raise `ConfigError` if an environment gives no picture, before anything is played."""
    env.reset()
    try:
        frame = env.render()
    except Exception as error:
        why = f"raises {type(error).__name__} in render(): {error}"
        raise _no_picture(name, _RENDERS, why) from error
    _picture(frame)


def _picture(frame: Any) -> Array:  # noqa: ANN401  # whatever the environment renders
    picture: Array = np.asarray(frame)
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        shown = f"{picture.dtype}{picture.shape}"
        raise ConfigError(f"render() returned {shown}, expected uint8 of height x width x 3")
    return picture


def _no_picture(name: str, mode: str, why: str) -> ConfigError:
    word, more = ("shown", "open its window in step()")
    if mode == _RENDERS:
        word, more = ("filmed", "its render() return an array of height x width x 3 bytes")
    return ConfigError(
        f"{name} cannot be {word}: it {why}; let its constructor take render_mode={mode!r} and "
        f"{more}"
    )


class _FilmedBatch(PlainBatch):
    def rest(self, resting: BoolArray) -> None:
        """Step them all: the last one's picture completes a frame."""


class _Filmed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Renders after each step, at its place in a grid."""

    def __init__(self, env: gymnasium.Env[Any, Any], grid: _Grid, place: int) -> None:
        super().__init__(env)
        self._grid = grid
        self._place = place

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._grid.begin(self._place)
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ANN401
        answer = self.env.step(action)
        over = answer[2] or answer[3]
        self._grid.show(self._place, self.env.render, over=over)
        return answer


class _Grid:
    """The pictures of environments that are stepped one after another, side by side."""

    film: _Film

    def __init__(self, count: int) -> None:
        self._pictures: list[Array] = [np.zeros((0, 0, 3), np.uint8)] * count
        self._ended = [False] * count
        """Which episodes have ended; only a seed begins another one that is shown."""

    def begin(self, place: int) -> None:
        """Show the next episode of an environment."""
        self._ended[place] = False

    def show(self, place: int, render: Callable[[], Any], *, over: bool) -> None:
        """Take an environment's picture; with the last one's, all are a frame."""
        count = len(self._pictures)
        if not self._ended[place]:
            self._pictures[place] = _picture(render())
        self._ended[place] |= over and count > 1
        if place == count - 1:
            self.film.add(self._joined())

    def _joined(self) -> Array:
        if len(sizes := {picture.shape for picture in self._pictures}) > 1:
            raise ConfigError(
                f"pictures of different sizes cannot be shown side by side: {sorted(sizes)}; leave "
                "--grid out"
            )
        columns = math.ceil(math.sqrt(len(self._pictures)))
        empty = np.zeros_like(self._pictures[0])
        missing = -len(self._pictures) % columns
        pictures = [*self._pictures, *[empty] * missing]
        rows = [pictures[i : i + columns] for i in range(0, len(pictures), columns)]
        return np.concatenate([np.concatenate(row, axis=1) for row in rows])


class _Film:
    """Encodes frames of equal size."""

    def __init__(self, path: Path, fps: float) -> None:
        import av  # noqa: PLC0415  # an optional package

        self._av = av
        self._file = av.open(str(path), "w", format="mp4")
        fast = {"preset": "veryfast"}
        self._stream: Any = self._file.add_stream("libx264", rate=round(fps), options=fast)
        self._stream.pix_fmt = "yuv420p"  # what every player shows
        self._begun = False

    def add(self, picture: Array) -> None:
        """Encode a frame."""
        # H.264 stores colours for 2 x 2 pixels.
        picture = picture[: picture.shape[0] & ~1, : picture.shape[1] & ~1]
        if not self._begun:
            self._stream.height, self._stream.width = picture.shape[:2]
            self._begun = True
        encoded = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
        self._file.mux(self._stream.encode(encoded))

    def close(self) -> None:
        """Encode what waits, and complete the file."""
        self._file.mux(self._stream.encode(None))
        self._file.close()
