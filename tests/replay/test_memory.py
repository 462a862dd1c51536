"""A replay is never in memory twice, whether it is saved, loaded or resumed from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.replay.large import SCHEMA, SEGMENTS

MEASURE = """
import gc, sys, threading
from dataclasses import replace
from pathlib import Path
import numpy as np
from asyncrl.checkpoint.array_file import evict
from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.checkpoint.resume import load_to_resume
from asyncrl.core.replay_buffer import replay_groups, restore_replay
from asyncrl.replay.files import load_replay
from tests.replay.large import LARGE, SCHEMA, SEGMENTS

def status_bytes(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))

def peak_of(action):
    gc.collect()  # what a buffer in a circle of references would leave is used again
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = status_bytes("VmRSS")
    result = action()
    return result, status_bytes("VmHWM") - before

kind, happens, directory = sys.argv[1:]
saved = Path(directory) / "saved"
config = LARGE[kind]
if happens == "in a file":
    config = replace(config, memory_map=Path(directory))
buffer = config.build(SCHEMA, 0)
columns = {c.name: np.ones((5, SCHEMA.rows, *c.shape), c.dtype) for c in SCHEMA.columns}
columns["flags"][:] = 0
rows = np.full(5, SCHEMA.rows)
for k in range(0, SEGMENTS, 5):
    buffer.push(columns, rows)
if happens == "in a file":
    evict(buffer._ring.columns.values())

def save():
    groups = replay_groups(buffer, save=True, room_bytes=32 << 20)
    meta = {"run": {}, "config": {}}
    saver = threading.Thread(target=Checkpointer(saved).save, args=("1", groups, meta))
    saver.start()
    while happens == "pushed" and saver.is_alive():
        buffer.push(columns, rows)
    saver.join()

def resume():
    buffer = LARGE[kind].build(SCHEMA, 0)
    restore_replay(buffer, load_to_resume(saved).groups)
    return buffer

_, to_save = peak_of(save)
del buffer
loaded, to_load = peak_of(lambda: load_replay(saved, LARGE[kind], seed=0))
n_loaded = len(loaded)
del loaded
resumed, to_resume = peak_of(resume)
print(n_loaded, len(resumed), to_save, to_load, to_resume)
"""


@pytest.mark.fault("F30")
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
@pytest.mark.parametrize(
    ("kind", "happens"), [("uniform", "in a file"), ("prioritized", "pushed"), ("queue", "nothing")]
)
@pytest.mark.processes
def test_replay_is_never_in_memory_twice(tmp_path: Path, kind: str, happens: str) -> None:
    command = [sys.executable, "-c", MEASURE, kind, happens, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    n_loaded, n_resumed, to_save, to_load, to_resume = map(int, done.stdout.split())
    held_bytes = SEGMENTS * SCHEMA.segment_bytes
    assert n_resumed == n_loaded
    loaded_bytes = held_bytes * n_loaded / (SEGMENTS * SCHEMA.length)
    assert loaded_bytes == held_bytes or (happens == "pushed" and n_loaded), "some were given up"
    assert to_save < 0.7 * held_bytes, "some pieces, and what is kept of what was overwritten"
    for peak_bytes in (to_load, to_resume):
        assert 0.9 * loaded_bytes < peak_bytes < 1.6 * held_bytes, "the replay, and a piece of it"
