"""Records in memory."""

from __future__ import annotations

from asyncrl.recorders.memory import MemoryRecorder


def test_last_is_the_newest_value_that_was_recorded() -> None:
    recorder = MemoryRecorder()
    recorder.write({"eval_reward": 1.0, "fps": 1.0})
    recorder.write({"eval_reward": 2.0})
    recorder.write({"fps": 3.0})
    assert recorder.last("eval_reward") == 2.0
    assert recorder.last("loss") is None


def test_configuration_and_end_are_kept() -> None:
    recorder = MemoryRecorder()
    recorder.start({"seed": 1})
    assert (recorder.config, recorder.failed) == ({"seed": 1}, None)
    recorder.close(failed=True)
    recorder.close(failed=False)
    assert recorder.failed is True
