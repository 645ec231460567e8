"""ConfigMaps, as far as Fluence reads them."""

from __future__ import annotations

from fluence.model.meta import KubeObject


class ConfigMap(KubeObject, frozen=True):
    """Texts by key."""

    data: dict[str, str] | None = None
