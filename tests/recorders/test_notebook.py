"""Progress in a notebook."""

from __future__ import annotations

import re
import sys

import pytest

from asyncrl.core.errors import ConfigError
from asyncrl.recorders.notebook import NotebookRecorder


def record(step: int, **more: float) -> dict[str, float]:
    return {"env_steps": 100.0 * step, "opt_steps": 10.0 * step, "wall_s": 1.0 * step, **more}


def test_bar_numbers_and_curve_follow_the_records() -> None:
    shown: list[str] = []
    recorder = NotebookRecorder(
        limits={"env_steps": 400}, target=("eval_reward", 475.0), show=shown.append
    )
    recorder.start({})
    recorder.write(record(1, **{"episode/return_mean": 20.0, "fps": 100.0}))
    assert "<progress value=0.250 max=1>" in shown[-1]
    assert "<svg" not in shown[-1]  # one point is no curve
    recorder.write(record(2, eval_reward=30.0))
    assert "<progress value=0.500 max=1>" in shown[-1]
    assert "2 s left" in shown[-1]
    assert re.findall("<td>(.*?)</td>", shown[-1]) == ["200", "20", "100", "20.0", "30.0", "475.0"]
    assert 'points="0.0,160.0"' in shown[-1]
    assert 'points="560.0,0.0"' in shown[-1]
    recorder.close(failed=True)
    recorder.close(failed=True)
    assert "failed, " in shown[-1]
    assert len(shown) == 4
    assert recorder.last("eval_reward") == 30.0


def test_missing_ipython_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    with pytest.raises(ConfigError, match="in a script use TerminalRecorder"):
        NotebookRecorder()
