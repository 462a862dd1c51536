"""A single environment whose steps are written as a video, one frame each.

Frames are those of Gymnasium's own rendering, encoded as H.264 by PyAV in this process. The file
appears under its name when it is complete.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from asyncrl.core.env import BatchEnv
from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array
from asyncrl.envs.gym import EnvConfig, as_batch_env

_RENDERS = "rgb_array"
_FPS = 30
"""Of environments that declare no rate."""

_SUFFIX = ".mp4"


def check_video(path: Path) -> None:
    """Raise `ConfigError` if a video cannot be written there, before anything is played."""
    if path.suffix != _SUFFIX:
        raise ConfigError(f"--video is {path}; a video is an {_SUFFIX} file, as video{_SUFFIX}")
    if not path.parent.is_dir():
        raise ConfigError(f"--video is {path}, and there is no directory {path.parent}")
    if importlib.util.find_spec("av") is None:
        raise ConfigError("--video needs the package av: pip install 'asyncrl[video]'")


@contextmanager
def filmed(config: EnvConfig, path: Path) -> Iterator[BatchEnv]:
    """Make one environment, and write each of its steps to a video while the block runs.

    An error in the block leaves no file.
    """
    env = _rendering(config)
    draft = path.with_name(f".{path.name}")
    try:
        film = _Film(draft, env.metadata.get("render_fps", _FPS))
        batch = as_batch_env(_Filmed(env, film), info=config.info)
        yield batch
        batch.close()
        film.close()
        draft.replace(path)
    finally:
        env.close()
        draft.unlink(missing_ok=True)


def _rendering(config: EnvConfig) -> gymnasium.Env[Any, Any]:
    # No window is opened; without this, pygame complains where there is no display.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    kwargs = {**config.kwargs, "render_mode": _RENDERS}
    config = replace(config, kwargs=kwargs, n_envs=1)
    if config.vectorization == "native":
        raise ConfigError(
            f"{config.id} has a vector form only, which renders no single environment"
        )
    try:
        env = config.make_plain()
    except TypeError as error:
        if "render_mode" not in str(error):
            raise
        raise _no_picture(config.id, "takes no argument render_mode") from error
    if env.render_mode != _RENDERS:
        env.close()
        raise _no_picture(config.id, f"renders {env.render_mode!r}, not {_RENDERS!r}")
    return env


def _no_picture(name: str, why: str) -> ConfigError:
    return ConfigError(
        f"{name} cannot be filmed: it {why}; let its constructor take render_mode={_RENDERS!r} and "
        "its render() return an array of height x width x 3 bytes"
    )


class _Filmed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Renders after each step."""

    def __init__(self, env: gymnasium.Env[Any, Any], film: _Film) -> None:
        super().__init__(env)
        self._film = film

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ANN401
        answer = self.env.step(action)
        self._film.add(self.env.render())
        return answer


class _Film:
    """Encodes frames of equal size."""

    def __init__(self, path: Path, fps: float) -> None:
        import av  # noqa: PLC0415  # an optional package

        self._av = av
        self._file = av.open(str(path), "w", format="mp4")
        self._stream: Any = self._file.add_stream("libx264", rate=round(fps))
        self._stream.pix_fmt = "yuv420p"  # what every player shows
        self._begun = False

    def add(self, frame: Any) -> None:  # noqa: ANN401  # whatever the environment renders
        """Encode a frame."""
        picture: Array = np.asarray(frame)
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            shown = f"{picture.dtype}{picture.shape}"
            raise ConfigError(f"render() returned {shown}, expected uint8 of height x width x 3")
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
