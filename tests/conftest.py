"""What holds for all tests: how hard Hypothesis tries, and that Ctrl-C is heard.

Hypothesis tries briefly by default, at length with FLUENCE_HYPOTHESIS=thorough. In CI the examples are the
same each time, so that it judges the change and not its luck; elsewhere they are others each time, so that
somebody finds what nobody thought of.
"""

import os
import signal

from hypothesis import HealthCheck, settings

_CI = bool(os.environ.get("CI"))
_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

settings.register_profile(
    "brief", deadline=None, print_blob=True, max_examples=50, suppress_health_check=_SLOW, derandomize=_CI
)
settings.register_profile(
    "thorough", deadline=None, print_blob=True, max_examples=2000, suppress_health_check=_SLOW
)
settings.load_profile(os.environ.get("FLUENCE_HYPOTHESIS") or "brief")

# A shell that starts us in the background has Ctrl-C ignored, and all that we start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["fluence.sandbox.testing"]
