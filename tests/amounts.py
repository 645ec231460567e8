"""How much a test tries: `make unit` less, `make test` the whole, `make soak` as much as a variable says."""

from __future__ import annotations

import os

QUICK = os.environ.get("FLUENCE_HYPOTHESIS") == "quick"


def amount(whole: int, *, quick: int, soak: str = "") -> int:
    """A number of examples, histories or objects; ``soak`` is the variable that names another."""
    return int(os.environ.get(soak, "0") if soak else "0") or (quick if QUICK else whole)
