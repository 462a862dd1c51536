from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array
from asyncrl.envs import film
from asyncrl.envs.film import check_video, check_window, filmed, in_window
from asyncrl.envs.gym import EnvConfig

av = pytest.importorskip("av")


CLOSED: list[int] = []
"""Steps of each environment that was closed."""


class Screen(gymnasium.Env[Any, Any]):
    """Shows a grey picture, brighter with each step. Its sides are odd, as some simulators' are."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(
        self, render_mode: str | None = None, channels: int = 3, renders: str | None = None
    ) -> None:
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 20}
        self.render_mode = renders or render_mode
        self.channels = channels
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, False, self.steps % 4 == 0, {}

    def close(self) -> None:
        CLOSED.append(self.steps)

    def render(self) -> Array:  # type: ignore[override]
        if not self.channels:
            raise OSError("no screen")
        return np.full((65, 97, self.channels), 20 * self.steps % 256, np.uint8)


class Blind(Screen):
    """Takes no argument."""

    def __init__(self) -> None:
        super().__init__("human")


def config(name: str = "Screen", **kwargs: Any) -> EnvConfig:
    return EnvConfig(id=f"tests.envs.test_film:{name}", kwargs=kwargs, n_envs=3)


def film_steps(made: EnvConfig, path: Path, steps: int, error: Exception | None = None) -> None:
    with filmed(made, path) as env:
        assert env.n_envs == 1
        env.reset(0)
        for _ in range(steps):
            env.step(np.zeros(1, np.int64))
        if error is not None:
            raise error


def frames_of(path: Path) -> list[Array]:
    with av.open(str(path)) as file:
        return [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]


def test_each_step_is_a_frame(tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    path.write_text("an older film")
    film_steps(config(), path, 10)  # across the ends of two episodes
    with av.open(str(path)) as file:
        assert file.streams.video[0].average_rate == 20
        frames = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
    assert [frame.shape for frame in frames] == [(64, 96, 3)] * 10
    np.testing.assert_allclose([f.mean() for f in frames], 20 * np.arange(1, 11), atol=4)
    assert list(tmp_path.iterdir()) == [path]


def test_several_environments_are_a_grid_and_those_that_ended_stand_still(tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    with filmed(config(), path, 3) as env:
        assert env.n_envs == 3
        for seed in (0, 10):  # episodes end after 4 steps
            env.reset(seed)
            for _ in range(6):
                env.step(np.zeros(3, np.int64))
                env.rest(np.ones(3, np.bool_))  # type: ignore[attr-defined]  # by an evaluation
    frames = frames_of(path)
    assert [frame.shape for frame in frames] == [(130, 194, 3)] * 12
    seen = [1, 2, 3, 4, 4, 4, 7, 8, 8, 8, 8, 8]
    for y, x in ((2, 2), (2, 100), (67, 2)):
        shown = [frame[y : y + 60, x : x + 90].mean() for frame in frames]
        np.testing.assert_allclose(shown, 20 * np.array(seen), atol=4)
    assert all(frame[70:, 100:].mean() < 4 for frame in frames), "an empty place"


def test_error_leaves_no_file_and_no_environment(tmp_path: Path) -> None:
    CLOSED.clear()
    with pytest.raises(RuntimeError, match="stop"):
        film_steps(config(), tmp_path / "x.mp4", 100, RuntimeError("stop"))  # some are on disk
    assert not list(tmp_path.iterdir())
    assert CLOSED == [100]


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (config("Blind"), "Blind cannot be filmed: it takes no argument render_mode"),
        (config(renders="human"), "Screen cannot be filmed: it renders 'human', not 'rgb_array'"),
        (replace(config(), vectorization="native"), "Screen has a vector form only"),
        (config(channels=0), "it raises OSError in render(): no screen"),
        (config(channels=4), "render() returned uint8(65, 97, 4)"),
    ],
)
def test_environment_without_pictures_is_refused(
    made: EnvConfig, error: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        film_steps(made, tmp_path / "x.mp4", 0)
    assert error in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_window_needs_a_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"a window needs a display, .* --video FILE\.mp4"):
        check_window()
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    check_window()


def test_window_is_of_the_environment_itself() -> None:
    with closing(in_window(config())) as env:
        assert env.n_envs == 1
        env.reset(0)
        env.step(np.zeros(1, np.int64))
    with pytest.raises(ConfigError, match="cannot be shown: it renders 'rgb_array', not 'human'"):
        in_window(config(renders="rgb_array"))


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(film.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="pip install 'asyncrl\\[video\\]'"):
        check_video(tmp_path / "x.mp4")
