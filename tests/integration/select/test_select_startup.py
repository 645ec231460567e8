"""The program starts fast, because it stands for `kubectl apply`: nothing heavy is loaded on the way.

How fast is measured by `benchmarks/startup.py`; here is only what makes it so.
"""

from __future__ import annotations

import subprocess
import sys


def test_neither_numpy_nor_a_cluster_client_is_loaded() -> None:
    code = (
        "import sys, fluence.kubectl.commands, fluence.kubectl.resolve, fluence.kubectl.report\n"
        "print([m for m in ('numpy', 'aiohttp', 'kubernetes', 'boto3', 'ruamel.yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
