"""Kubernetes quantities, durations and times as exact integers, and names in natural order.

A quantity is a decimal number with a suffix: ``100m``, ``1.5Gi``, ``2e3``. The API server keeps nothing
finer than 10^-9 and rounds up to it (apimachinery ``resource.Quantity``), so an integer count of nanos holds
every quantity exactly. Sums are made in nanos and rounded up once, as kube-scheduler does: milli for cpu,
whole units for the rest.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from fluence.errors import InvalidInput

NANO = 1_000_000_000

# The largest counted amount of a resource, in the unit of `amount`: 128 TiB of memory, 10^11 cores. A larger
# amount on a node, or used by running pods, is counted as this much; a larger request never fits. Columns are
# int64: the sum over 2^15 pools, or over 2^15 pods of one node, stays below 2^62.
MAX_AMOUNT = 1 << 47

_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_QUANTITY = re.compile(
    r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:([eE][+-]?[0-9]+)|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII
)
_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?", re.ASCII)
_PARTS = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ms|min|s|m|h|d)", re.ASCII)
_TIMES = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_LENGTHS = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_MAX_DIGITS = 64  # the API server writes no longer ones; a hostile string must not cost time
_MAX_EXPONENT = 200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_MICROSECONDS = 253_402_300_799_999_999  # microseconds: the end of the year 9999


@lru_cache(maxsize=65_536)
def parse_quantity(text: str) -> int:
    """The quantity in nanos (10^-9), rounded away from zero where it is finer than that.

    >>> parse_quantity("100m"), parse_quantity("1Ki") // NANO
    (100000000, 1024)
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or len(text) > _MAX_DIGITS:
        raise InvalidInput(f"{text[:40]!r} is not a quantity; write a number such as 500m, 2, 1.5Gi or 1e3")
    sign, whole, fraction, exponent, suffix = match.groups()
    fraction = fraction or ""
    if not whole and not fraction:
        raise InvalidInput(f"{text[:40]!r} is not a quantity: it has no digits")
    digits = int(whole + fraction) if whole + fraction else 0
    power = -len(fraction)
    scale = 1
    if exponent:
        # The API server accepts any exponent. Beyond these, any number is larger than `MAX_AMOUNT` or finer
        # than a nano.
        power += max(-_MAX_EXPONENT, min(_MAX_EXPONENT, int(exponent[1:])))
    elif suffix in _BINARY:
        scale = 1 << _BINARY[suffix]
    else:
        power += _DECIMAL[suffix or ""]
    power += 9  # to nanos
    amount = digits * scale
    nanos: int = amount * 10**power if power >= 0 else -(-amount // 10**-power)
    return -nanos if sign == "-" else nanos


def to_milli(nanos: int) -> int:
    """Thousandths, rounded up: the unit of cpu."""
    return -(-nanos // 1_000_000)


def to_whole(nanos: int) -> int:
    """Whole units, rounded up: bytes, devices, pods."""
    return -(-nanos // NANO)


def amount(resource: str, nanos: int) -> int:
    """Convert nanos to the unit of this resource: milli for cpu, whole units for everything else."""
    return to_milli(nanos) if resource == "cpu" else to_whole(nanos)


def format_amount(resource: str, value: int) -> str:
    """An amount as people write it: ``format_amount("cpu", 1500) == "1500m"``, memory in the largest exact
    Ki..Ei, and amounts that no server counts exactly as ``1e30``."""
    if value >> 63:
        return f"{value / 1000 if resource == 'cpu' else value:.4g}".replace("e+", "e")
    if resource == "cpu":
        return str(value // 1000) if value % 1000 == 0 else f"{value}m"
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        for suffix, shift in reversed(_BINARY.items()):
            if value and value % (1 << shift) == 0:
                return f"{value >> shift}{suffix}"
    return str(value)


def parse_duration(text: str) -> int | None:
    """Milliseconds from ``3600`` (seconds), ``90s``, ``2h30m``, ``1.5h``; None for any other text.

    >>> parse_duration("2h30m"), parse_duration("3600"), parse_duration("soon")
    (9000000, 3600000, None)
    """
    text = text.strip()
    if _SECONDS.fullmatch(text):
        return _milliseconds(text, "s")
    parts = _PARTS.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(_milliseconds(number, unit) for number, unit in parts)


def format_duration(seconds: int) -> str:
    """``format_duration(5400) == "1h30m"``: at most the three largest units that are not 0."""
    parts = []
    for length, unit in _LENGTHS:
        count, seconds = divmod(seconds, length)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:3]) or "0s"


def round_duration(seconds: float) -> str:
    """``round_duration(5400) == "1.5 h"``: a time in its largest unit, for people who compare."""
    for length, unit in _LENGTHS[:-1]:
        if abs(seconds) >= length:
            return f"{seconds / length:.1f} {'min' if unit == 'm' else unit}"
    return f"{seconds:.0f} s"


def spell_duration(milliseconds: int) -> str:
    """``spell_duration(5_400_000) == "1 h 30 min"``: the two largest units, rounded up to seconds."""
    seconds = -(-milliseconds // 1000)
    parts = []
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count, seconds = divmod(seconds, length)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"


def rfc3339(microseconds: int, timespec: str = "seconds") -> str:
    """A time as the API server writes it; ``timespec``: minutes, seconds, milliseconds or microseconds.

    >>> rfc3339(1_500_000), rfc3339(1_500_000, "microseconds")
    ('1970-01-01T00:00:01Z', '1970-01-01T00:00:01.500000Z')
    """
    when = _EPOCH + timedelta(microseconds=max(0, min(microseconds, _MAX_MICROSECONDS)))
    return when.replace(tzinfo=None).isoformat(timespec=timespec) + "Z"


def parse_rfc3339(text: str) -> int | None:
    """A time with its zone, in microseconds since 1970; None for any other text.

    >>> parse_rfc3339("1970-01-01T00:00:01.5Z"), parse_rfc3339("tomorrow")
    (1500000, None)
    """
    try:
        since = datetime.fromisoformat(text) - _EPOCH
    except (ValueError, TypeError, OverflowError):  # not a time, without a zone, or out of range
        return None
    microseconds = since // timedelta(microseconds=1)
    return microseconds if microseconds >= 0 else None


def _milliseconds(number: str, unit: str) -> int:
    whole, _, fraction = number.partition(".")
    scale = _TIMES[unit]
    # Rounded up, in integers: a limit may be a little too long but never too short.
    part = -(-int(fraction) * scale // 10 ** len(fraction)) if fraction else 0
    return int(whole) * scale + part


_DIGITS = re.compile(r"([0-9]+)", re.ASCII)


@lru_cache(maxsize=65_536)  # the same names are sorted again and again
def natural_key(name: str) -> tuple[tuple[int, str], ...]:
    """The sort key that puts `n2` before `n10`.

    >>> sorted(["n10", "n2", "n"], key=natural_key)
    ['n', 'n2', 'n10']
    """
    # Text and numbers alternate, so a number is only ever compared with a number. The name itself comes last:
    # `n2` and `n02` differ.
    parts = enumerate(_DIGITS.split(name))
    return (*((int(part), "") if i % 2 else (0, part) for i, part in parts), (-1, name))
