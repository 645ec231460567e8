"""The text of every reason, made at the edge: conditions, events, logs and the programs.

`text` is the only way from a `Reason` to English; what decides never imports this room. Each module has the
templates of one part of the code.
"""

from __future__ import annotations

from fluence.messages.cluster import CLUSTER
from fluence.messages.groups import GROUPS
from fluence.messages.limits import LIMITS
from fluence.messages.queue import QUEUE, VOLUMES
from fluence.messages.rendering import TEMPLATES, text, texts

__all__ = ["TEMPLATES", "text", "texts"]

for _templates in (QUEUE, LIMITS, VOLUMES, GROUPS, CLUSTER):
    TEMPLATES.update(_templates)
