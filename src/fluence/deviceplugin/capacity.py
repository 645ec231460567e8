"""Capacity: how many of each type a node offers, and under which names.

The number bounds nothing: how many there are is known to the scheduler, which gives them out. It is only to
be so large that no node is ever the bound.
"""

from __future__ import annotations

import logging
from typing import Final

from fluence import names
from fluence.model.device import DeviceTree

logger = logging.getLogger(__name__)

VARIABLE: Final = "FLUENCE_RESOURCE_CAPACITY"
DEFAULT: Final = 1000
MOST: Final = 32_768  # of ids in one message: the kubelet takes 4 MiB


def read_capacity(text: str) -> int:
    """The number per node and type. What is none is ignored and told, as the predecessor did it."""
    text = text.strip()
    if len(text) <= 12 and text.isascii() and text.isdecimal() and 1 <= int(text) <= MOST:
        return int(text)
    logger.warning(
        "%s=%.40r is ignored: write a whole number from 1 to %d; it is %d", VARIABLE, text, MOST, DEFAULT
    )
    return DEFAULT


def offered(tree: DeviceTree, capacity: int) -> dict[str, int]:
    """Per resource name, as pods request it, how many a node offers: every type at every level."""
    return {names.DEVICE_PREFIX + each: capacity for each in tree.types}
