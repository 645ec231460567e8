"""`python -m fluence.cli` is `fluence`."""

from fluence.cli import main

main()
