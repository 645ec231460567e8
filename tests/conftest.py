"""What holds for all tests: how hard Hypothesis tries, and that Ctrl-C is heard.

Hypothesis tries briefly by default, at length with FLUENCE_HYPOTHESIS=thorough; with =quick, as `make unit`
has it, no test tries more than ten examples, whatever it asks for itself. In CI the examples are the same
each time, so that it judges the change and not its luck; elsewhere they are others, so that somebody
finds what nobody thought of.
"""

import atexit
import os
import shutil
import signal
import tempfile
from typing import Any

from hypothesis import HealthCheck, settings

_CI = bool(os.environ.get("CI"))
_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

settings.register_profile(
    "brief", deadline=None, print_blob=True, max_examples=50, suppress_health_check=_SLOW, derandomize=_CI
)
settings.register_profile(
    "thorough", deadline=None, print_blob=True, max_examples=2000, suppress_health_check=_SLOW
)
settings.register_profile(
    "quick", deadline=None, print_blob=True, max_examples=10, suppress_health_check=_SLOW, derandomize=_CI
)
_PROFILE = os.environ.get("FLUENCE_HYPOTHESIS") or "brief"
settings.load_profile(_PROFILE)
if _PROFILE == "quick":
    _made = settings.__init__

    def _make(self: settings, *parent: settings, **given: Any) -> None:
        """Settings of a test's own, with no more examples than the profile's."""
        if "max_examples" in given:
            given["max_examples"] = min(given["max_examples"], settings.default.max_examples)
        _made(self, *parent, **given)

    settings.__init__ = _make  # type: ignore[method-assign]

# Schedulers that tests start keep their history here, not in the home of whoever runs the tests.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _STATE = tempfile.mkdtemp(prefix="fluence-history-")
    os.environ["FLUENCE_DATABASE_URL"] = f"{_STATE}/history.db"
    atexit.register(shutil.rmtree, _STATE, ignore_errors=True)

# A shell that starts us in the background has Ctrl-C ignored, and all that we start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["fluence.sandbox.testing"]
