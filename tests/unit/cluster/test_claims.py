"""What is known of claims, and which volumes would do."""

from __future__ import annotations

from typing import Any

import msgspec

from fluence.cluster.claims import Claim, Claims
from fluence.model.claims import PersistentVolume, StorageClass, VolumeClaim
from fluence.model.reason import Code, Reason

ONCE = ["ReadWriteOnce"]


def claim(name: str = "data", *, kind: str | None = "local", size: str = "1Gi", **more: Any) -> VolumeClaim:
    meta = {"namespace": "d", "name": name, "uid": f"uid-{name}", **more.pop("metadata", {})}
    status = {"phase": more.pop("phase", "Pending")}
    spec = {"accessModes": ONCE, "resources": {"requests": {"storage": size}}, **more}
    if kind is not None:
        spec["storageClassName"] = kind
    return msgspec.convert({"metadata": meta, "spec": spec, "status": status}, VolumeClaim)


def volume(name: str, *, on: str | None = None, size: str = "1Gi", **more: Any) -> PersistentVolume:
    labels = more.pop("labels", None)
    phase = more.pop("phase", "Available")
    spec = {"accessModes": ONCE, "capacity": {"storage": size}, "storageClassName": "local", **more}
    if on is not None:
        term = {"key": "kubernetes.io/hostname", "operator": "In", "values": [on]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}}
    body = {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"phase": phase}}
    return msgspec.convert(body, PersistentVolume)


def kind(
    name: str = "local", *, provisioner: str = "kubernetes.io/no-provisioner", **more: Any
) -> StorageClass:
    body = {"volumeBindingMode": "WaitForFirstConsumer", "provisioner": provisioner, **more}
    return msgspec.convert({"metadata": {"name": name}, **body}, StorageClass)


def known(claims: Claims, name: str = "data") -> Claim:
    (found,) = [each for _, its, each in claims.everything() if its == name]
    assert found is not None
    return found


def choices(claims: Claims) -> list[str]:
    return [each.volume for each in known(claims).choices]


def test_a_claim_waits_if_its_class_says_so_whatever_comes_first() -> None:
    claims = Claims()
    assert claims.set_claim(claim())[0][2] == known(claims)
    assert known(claims).reason == Reason.of(Code.STORAGE_CLASS_MISSING, storage_class="local")
    claims.set_class(kind(provisioner="csi.example"))
    ((_, _, told),) = claims.settle()
    assert told is not None and told.state == "waits" and told.provisions and told.reach is None
    claims.set_class(kind(provisioner="csi.example", volumeBindingMode="Immediate"))
    claims.settle()
    assert known(claims).state == "pending" and known(claims).reason == Reason.of(Code.CLAIM_UNBOUND)


def test_a_claim_without_a_class_does_not_wait_for_a_pod() -> None:
    claims = Claims()
    claims.set_class(kind())
    for name in (None, ""):
        claims.set_claim(claim(kind=name))
        assert known(claims).state == "pending"


def test_allowed_topologies_say_where_a_volume_can_be_made() -> None:
    claims = Claims()
    zone = {"key": "topology.kubernetes.io/zone", "values": ["a", "b"]}
    claims.set_class(kind(provisioner="csi.example", allowedTopologies=[{"matchLabelExpressions": [zone]}]))
    claims.set_claim(claim())
    reach = known(claims).reach
    assert reach is not None and reach.node_selector_terms is not None
    (term,) = reach.node_selector_terms
    assert term.match_expressions is not None and term.match_expressions[0].values == ["a", "b"]


def test_volumes_that_would_do_the_smallest_first() -> None:
    claims = Claims()
    claims.set_class(kind())
    claims.set_claim(claim(size="5Gi"))
    given = {"namespace": "d", "name": "other"}
    for each in (
        volume("large", size="20Gi"),
        volume("right", size="5Gi"),
        volume("small", size="4Gi"),
        volume("block", size="9Gi", volumeMode="Block"),
        volume("shared", size="9Gi", accessModes=["ReadWriteMany"]),
        volume("elsewhere", size="9Gi", storageClassName="fast"),
        volume("used", size="9Gi", phase="Bound"),
        volume("given", size="9Gi", claimRef=given),
    ):
        claims.set_volume(each)
    claims.settle()
    assert choices(claims) == ["right", "large"]
    claims.remove_volume(volume("right"))
    assert claims.settle() and choices(claims) == ["large"]


def test_a_selector_chooses_among_volumes() -> None:
    claims = Claims()
    claims.set_class(kind())
    claims.set_volume(volume("plain"))
    claims.set_volume(volume("ssd", labels={"disk": "ssd"}))
    claims.set_claim(claim(selector={"matchLabels": {"disk": "ssd"}}))
    assert choices(claims) == ["ssd"]


def test_a_volume_given_to_a_claim_is_its_only_choice() -> None:
    claims = Claims()
    claims.set_class(kind(provisioner="csi.example"))
    claims.set_claim(claim())
    claims.set_volume(volume("a"))
    claims.set_volume(volume("b", claimRef={"namespace": "d", "name": "data", "uid": "uid-data"}))
    claims.settle()
    assert choices(claims) == ["b"] and not known(claims).provisions
    claims.set_volume(volume("b", claimRef={"namespace": "d", "name": "data", "uid": "of another"}))
    claims.settle()
    assert choices(claims) == ["a"] and known(claims).provisions


def test_a_bound_claim_is_where_its_volume_is_once_that_is_seen() -> None:
    claims = Claims()
    claims.set_class(kind())
    claims.set_claim(claim(volumeName="v", phase="Bound"))
    assert known(claims).state == "pending"
    ((_, _, told),) = claims.set_volume(volume("v", on="n1", phase="Bound"))
    assert told is not None and told.state == "bound" and told.nodes is not None
    assert told.one_node and not told.one_pod
    claims.set_claim(
        claim(volumeName="v", phase="Bound", metadata={"deletionTimestamp": "2026-09-01T12:00:00Z"})
    )
    assert known(claims).reason == Reason.of(Code.CLAIM_TERMINATING) and known(claims).is_terminating
