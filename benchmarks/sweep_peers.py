"""Which arrangement of its environments is the fastest for each side, on this machine?

Tries each one for a moment and writes the best to results/peers_settings.json, from where
bench_peers.py takes it for `sampling`; without that file, each script uses its own.

    python -m benchmarks.sweep_peers [--peers PEER ...]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bench_peers import SETTINGS_FILE, SIDES, run_apart
from benchmarks.common import RESULTS, note
from benchmarks.peer_results import OURS
from benchmarks.peers.interface import ATARI, CARTPOLE, CHEETAH

Settings = Mapping[str, Any]

_LIMIT_S = 75.0


def _sb3(*envs: int, processes: bool) -> list[Settings]:
    return [{"processes": processes, "envs": n} for n in envs]


def _kinds(kind: str, *envs: int, **more: object) -> list[Settings]:
    return [{"kind": kind, "envs": n, **more} for n in envs]


def _actors(*envs: int) -> list[Settings]:
    return [{"actors": 2, "envs_per_actor": n} for n in envs]


_SYNC = {"collector": "sync", "workers": 2}
_ASYNC = {"collector": "async", "workers": 2}
_SINGLE = {"collector": "single", "workers": 1}

CANDIDATES: Mapping[str, Mapping[str, Sequence[Settings]]] = {
    OURS: {CARTPOLE: _actors(64, 128), CHEETAH: _actors(16, 32), ATARI: _actors(8, 16, 32)},
    "sb3": {
        CARTPOLE: _sb3(64, 128, processes=False),
        CHEETAH: _sb3(8, 16, processes=True) + _sb3(16, processes=False),
        ATARI: _sb3(8, 16, processes=True) + _sb3(16, processes=False),
    },
    "torchrl": {
        CARTPOLE: [*_kinds("sync", 128, **_SYNC), *_kinds("sync", 128, **_ASYNC)],
        CHEETAH: [*_kinds("sync", 32, **_SYNC), *_kinds("sync", 32, **_ASYNC)],
        ATARI: [
            *_kinds("ale", 16, **_SYNC),
            *_kinds("ale", 16, **_SINGLE),
            *_kinds("sync", 8, **_SYNC),
        ],
    },
    "tianshou": {
        CARTPOLE: _kinds("dummy", 64, 256),
        CHEETAH: [*_kinds("shmem", 8, 16), *_kinds("dummy", 32)],
        ATARI: [*_kinds("shmem", 8, 16), *_kinds("dummy", 16)],
    },
    "cleanrl_style": {
        CARTPOLE: _kinds("sync", 64, 256),
        CHEETAH: [*_kinds("async", 8, 16), *_kinds("sync", 32)],
        ATARI: _kinds("ale", 8, 16, 32),
    },
}


def best(tried: Sequence[tuple[Settings, float | None]]) -> Settings | None:
    """Return the fastest settings; None if none has worked."""
    known = [(value, settings) for settings, value in tried if value is not None]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def try_one(side: str, env: str, settings: Settings, seconds: float) -> float | None:
    """Return the environment steps a second with these settings; None if there are none."""
    command = [str(SIDES[side].python), "-m", SIDES[side].module, "sampling", "--env", env]
    command += ["--seconds", f"{seconds:g}", "--settings", json.dumps(settings)]
    printed, why = run_apart(command, seconds + _LIMIT_S)
    value: float | None = printed.get("value")
    note(f"{side}, {env}, {settings}: {why or value}")
    return value


def main() -> None:
    """Try everything, and keep the best of it as soon as it is known."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peers", nargs="+", choices=list(CANDIDATES), default=list(CANDIDATES))
    parser.add_argument("--seconds", type=float, default=1.5, help="of each")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    path = args.results / SETTINGS_FILE
    chosen = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for side in args.peers:
        if not SIDES[side].python.exists():
            note(f"without {side}: {SIDES[side].python} is not there")
            continue
        for env, candidates in CANDIDATES[side].items():
            tried = [(c, try_one(side, env, c, args.seconds)) for c in candidates]
            if settings := best(tried):
                chosen.setdefault(side, {})[env] = settings
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(chosen, indent=1) + "\n", encoding="utf-8")
    note(f"the fastest settings are in {path}")


if __name__ == "__main__":
    main()
