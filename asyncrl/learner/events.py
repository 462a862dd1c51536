"""What happens in a run, for callbacks."""

from __future__ import annotations

from collections import deque
from typing import Literal

Event = Literal["evaluated", "saved", "published", "episodes", "actor_restarted", "actor_dropped"]
"""Methods of `Callback` that are called when something has happened."""

Events = deque[tuple[Event, tuple[object, ...]]]
"""What has happened, with its values, since callbacks were last called. Any thread may append."""
