"""`python -m fluence.cli` is `fluence`."""

from fluence.entry import fluence

fluence()
