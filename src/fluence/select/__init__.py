"""The client-side choice of a backend: the candidates, the policies, and the edit of the manifest.

    manifest ──► workload ──► request ─┐
                                       ├─► engine ──► selection ──► edit ──► manifest
    providers ──► backends ────────────┘

Only providers use files, the cluster or credentials; everything else is a pure function. The
room runs on a user's machine inside ``kubectl fluence``, so it starts fast: no numpy, no cluster client, and
ruamel.yaml, boto3 and entry points are loaded only when they are needed.
"""

from fluence.select.engine import BackendSelection, NoBackend, choose
from fluence.select.policies import (
    Backend,
    BackendPolicy,
    BackendRequest,
    NoCandidate,
    Verdict,
    parse_pipeline,
)
from fluence.select.providers import BackendAnswer, BackendQuery, Provider, ProviderSettings

__all__ = [
    "Backend",
    "BackendAnswer",
    "BackendPolicy",
    "BackendQuery",
    "BackendRequest",
    "BackendSelection",
    "NoBackend",
    "NoCandidate",
    "Provider",
    "ProviderSettings",
    "Verdict",
    "choose",
    "parse_pipeline",
]
