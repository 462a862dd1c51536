"""What MuJoCo warns of, once in each process and through logging.

Left to itself it prints a warning whenever an environment is made, hundreds of times for a batch,
and appends it to a file MUJOCO_LOG.TXT in the working directory.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys

logger = logging.getLogger(__name__)

_heard: set[str] = set()


def hear_warnings(code: str = "") -> None:
    """Hear MuJoCo's warnings from now on, if it is loaded and nobody else hears them.

    `code` is where the next environment comes from: if that is MuJoCo, it is loaded now.
    """
    if "mujoco" in code:
        with contextlib.suppress(ImportError):  # whoever makes the environment tells what is absent
            importlib.import_module("mujoco")
    mujoco = sys.modules.get("mujoco")
    if mujoco is not None and mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_hear)


def _hear(text: str) -> None:
    if text not in _heard:
        _heard.add(text)
        # What will be gone one day is for whoever wrote the model to mend.
        logger.log(logging.DEBUG if "deprecated" in text else logging.WARNING, "MuJoCo: %s", text)
