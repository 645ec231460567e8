"""What holds for all tests: how hard Hypothesis tries, that Ctrl-C is heard, and what a machine lacks.

Tests are the same for everybody: the same examples, and the same order of sets in what they start. So a run
judges the change and not its luck. No test tries more than 50 examples, whatever it asks for itself, and with
FLUENCE_HYPOTHESIS=quick, as `make unit` has it, no more than six: the search for counterexamples is `make
explore` and `make soak`, which set =explore. There examples are new each time, and as many
as a test asks for.
"""

import atexit
import os
import shutil
import signal
import sys
import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
_ALL = settings(deadline=None, print_blob=True, suppress_health_check=_SLOW)

settings.register_profile("brief", _ALL, max_examples=50, derandomize=True)
settings.register_profile("quick", _ALL, max_examples=6, derandomize=True)
settings.register_profile("explore", _ALL, max_examples=200, database=None, report_multiple_bugs=False)
_PROFILE = os.environ.get("FLUENCE_HYPOTHESIS") or "brief"
settings.load_profile(_PROFILE)
if _PROFILE != "explore":
    # Hypothesis draws constants from the modules that happen to be loaded, and those differ from worker to
    # worker. So the same seed would try other examples in each run.
    assert callable(providers._get_local_constants)
    providers._get_local_constants = lambda: providers._local_constants
os.environ.setdefault("PYTHONHASHSEED", "0")  # of workers and programs; `make` sets it for pytest itself
if _PROFILE != "explore":
    _made = settings.__init__

    def _make(self: settings, *parent: settings, **given: Any) -> None:
        """Settings of a test's own, with no more examples than the profile's."""
        if "max_examples" in given and settings.default is not None:
            given["max_examples"] = min(given["max_examples"], settings.default.max_examples)
        _made(self, *parent, **given)

    settings.__init__ = _make  # type: ignore[assignment,method-assign]

# Compiled modules are kept: without them each worker, and each program that a test starts, compiles all of
# the code and of the tests anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Schedulers that tests start keep their history here, not in the home of whoever runs the tests.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _STATE = tempfile.mkdtemp(prefix="fluence-history-")
    os.environ["FLUENCE_DATABASE_URL"] = f"{_STATE}/history.db"
    atexit.register(shutil.rmtree, _STATE, ignore_errors=True)

# A shell that starts us in the background has Ctrl-C ignored, and all that we start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["fluence.sandbox.testing"]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Which part of the promise was not tested on this machine, and how to get it."""
    from tests.needs import untested  # later: it imports the plug-in, which pytest is to import first

    skipped = terminalreporter.stats.get("skipped", ())
    reasons = [each.longrepr[2] for each in skipped if isinstance(each.longrepr, tuple | list)]
    if lines := list(untested(reasons)):
        terminalreporter.section("not tested on this machine")
        for line in lines:
            terminalreporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "seeded: takes FLUENCE_SEED; `make explore` gives it fresh ones")
