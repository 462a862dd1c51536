"""The file with which hosts join, and what it must not be."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from asyncrl.core.errors import ConfigError
from asyncrl.run.join_key import JoinKey
from asyncrl.transport.zeromq import Curve

SPACES = {"observation": {}, "action": {"n": 2}}
KEY = JoinKey(
    spaces=SPACES,
    address="tcp://learner.example.org:7777",
    curve=Curve(server=b"s" * 40, public=b"p" * 40, secret=b"x" * 40),
    settings={"env": "CartPole-v1", "env_schedule": {1000: {"gravity": 1.0}}},
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "join.key"
    path.write_text("of an earlier start, and readable")
    KEY.save(path)
    return path


def test_a_key_comes_back_and_only_its_user_can_read_it(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    loaded = JoinKey.load(path)
    assert (loaded.address, loaded.curve) == (KEY.address, KEY.curve)
    assert loaded.settings == {"env": "CartPole-v1"}, "a schedule is the learner's"
    assert "xxx" not in repr(loaded)
    assert [*path.parent.iterdir()] == [path]
    KEY.remove(path)
    KEY.remove(path)
    assert not path.exists()


@pytest.mark.parametrize("mode", [0o604, 0o620])
def test_a_key_that_others_can_reach_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"mode {mode:04o}\), .*; run: chmod 600 {path}"):
        JoinKey.load(path)


@pytest.mark.parametrize(
    "content", ["", "[]", json.dumps({"address": "tcp://a:1", "settings": None})]
)
def test_a_file_that_is_no_key_is_refused(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(ConfigError, match="join key"):
        JoinKey.load(path)


def test_what_is_wrong_with_a_file_is_said_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no join key .*--listen tcp://ADDRESS"):
        JoinKey.load(tmp_path / "join.key")
    with pytest.raises(ConfigError, match=r"is a directory; name its file join\.key$"):
        JoinKey.load(tmp_path)
    path = tmp_path / "join.key"
    path.write_text("{}")
    path.chmod(0o644)
    with pytest.raises(ConfigError, match=r"^the join key .* can be read by others"):
        JoinKey.load(path)
