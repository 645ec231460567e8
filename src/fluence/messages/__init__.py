"""The text of every reason, for conditions, events, logs and the command line.

`text` is the only way from a `Reason` to English. Code that makes decisions never imports this package. Each
module has the templates of one part of the code.
"""

from __future__ import annotations

from fluence.messages.cluster import CLUSTER
from fluence.messages.groups import GROUPS
from fluence.messages.queue import ELIGIBILITY, LIMITS, PREEMPTION, QUEUE, VOLUMES
from fluence.messages.rendering import TEMPLATES, text, texts

__all__ = ["TEMPLATES", "text", "texts"]

for _templates in (QUEUE, LIMITS, PREEMPTION, VOLUMES, GROUPS, ELIGIBILITY, CLUSTER):
    TEMPLATES.update(_templates)
