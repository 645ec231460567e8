"""Claims: what is known of PersistentVolumeClaims, from claims and volumes in whatever order they come."""

from __future__ import annotations

from fluence.cluster.unchecked import Claim
from fluence.model.volume import Volume, VolumeClaim


class Claims:
    """Each change answers with the claims that may have changed, as (namespace, name, what is known)."""

    def __init__(self) -> None:
        self._claims: dict[tuple[str, str], VolumeClaim] = {}
        self._volumes: dict[str, Volume] = {}
        self._bound: dict[str, tuple[str, str]] = {}  # volume -> its claim

    def set_claim(self, claim: VolumeClaim) -> list[tuple[str, str, Claim | None]]:
        key = claim.metadata.namespace, claim.metadata.name
        self._claims[key] = claim
        if claim.spec.volume_name:
            self._bound[claim.spec.volume_name] = key
        return [self._say(key)]

    def remove_claim(self, claim: VolumeClaim) -> list[tuple[str, str, Claim | None]]:
        key = claim.metadata.namespace, claim.metadata.name
        self._claims.pop(key, None)
        return [(*key, None)]

    def set_volume(self, volume: Volume) -> list[tuple[str, str, Claim | None]]:
        self._volumes[volume.metadata.name] = volume
        return self._of(volume)

    def remove_volume(self, volume: Volume) -> list[tuple[str, str, Claim | None]]:
        self._volumes.pop(volume.metadata.name, None)
        return self._of(volume)

    def _of(self, volume: Volume) -> list[tuple[str, str, Claim | None]]:
        key = self._bound.get(volume.metadata.name)
        return [self._say(key)] if key is not None and key in self._claims else []

    def _say(self, key: tuple[str, str]) -> tuple[str, str, Claim | None]:
        claim = self._claims[key]
        alone = "ReadWriteOncePod" in (claim.spec.access_modes or ())
        volume = self._volumes.get(claim.spec.volume_name or "")
        if claim.status.phase != "Bound" or volume is None:
            # NB a claim that waits for its first consumer stays here too: nobody tells its provisioner which
            # node was selected yet, so a pod that was bound would wait for its volume for ever.
            return (*key, Claim("pending", None, alone))
        affinity = volume.spec.node_affinity
        return (*key, Claim("bound", affinity.required if affinity is not None else None, alone))
