"""`python -m fluence.cli` is `fluence`."""

from fluence.startup import run, start

start()

from fluence.cli.commands import main  # noqa: E402  # an interrupt while it loads ends the process

run(main)
