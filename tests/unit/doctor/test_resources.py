"""What the doctor finds about external resources."""

from __future__ import annotations

from dataclasses import replace as replace_facts

from msgspec.structs import replace

from fluence.doctor.facts import Check, Health, Seen
from fluence.model.pod import Container, EnvVar, Pod, ResourceRequirements
from fluence.names import DEVICE_PREFIX
from tests.unit.cluster.build import node
from tests.unit.doctor.sample import ADMISSION, found, having, pod, the

QPU = f"{DEVICE_PREFIX}qpu"


def test_a_node_whose_device_plugin_is_gone_is_named_with_the_cure() -> None:
    facts = having(nodes=Seen((node("n1", offers={QPU: "0"}), node("n2", offers={QPU: "1k"}))))
    some = the(facts, Check.OFFERED_RESOURCES)
    assert some.verdict is Health.WARN
    assert some.message == (
        f"the kubelets of n1 offer {QPU}: 0, because their device plugin is gone: pods that request it go "
        "elsewhere"
    )
    assert "fluence resources advertise --remove" in some.cure


def test_where_no_node_offers_a_resource_any_more_it_is_wrong() -> None:
    facts = having(nodes=Seen((node("n1", offers={QPU: "0"}), node("n2", offers={QPU: "0"}))))
    assert the(facts, Check.OFFERED_RESOURCES).verdict is Health.WRONG


def test_nodes_that_never_named_a_resource_are_right() -> None:
    facts = having(nodes=Seen((node("n1"), node("n2", offers={QPU: "1k"}))))
    assert found(facts, Check.OFFERED_RESOURCES) == []


def test_a_type_that_is_not_declared_any_more_harms_nobody() -> None:
    facts = having(nodes=Seen((node("n1", offers={f"{DEVICE_PREFIX}old": "0"}),)))
    assert found(facts, Check.OFFERED_RESOURCES) == []


def test_nodes_that_may_not_be_listed_are_unseen() -> None:
    (finding,) = found(having(nodes=Seen((), "nodes cannot be read: forbidden")), Check.OFFERED_RESOURCES)
    assert finding.verdict is Health.UNSEEN


def asking(name: str, *env: str) -> Pod:
    limits = ResourceRequirements(limits={QPU: "1"})
    box = Container(name="c", resources=limits, env=[EnvVar(name=each) for each in env])
    made = pod(name)
    return replace(made, spec=replace(made.spec, containers=[box]))


def test_pods_without_the_variables_of_their_backend_are_named() -> None:
    facts = having(pods=Seen((asking("blind"), asking("told", "QRMI_BACKEND"), pod("other"))))
    finding = the(facts, Check.UNSET_VARIABLES)
    assert finding.verdict is Health.WARN
    assert finding.message.startswith("ns/blind has a container without the variables of the backend")
    assert finding.cure == "delete and create the pods again"  # admission is there by now


def test_without_admission_the_cure_of_missing_variables_begins_with_it() -> None:
    nobody = replace_facts(ADMISSION, policies=Seen(), bindings=Seen())
    facts = having(pods=Seen((asking("blind"),)), admission=nobody)
    assert the(facts, Check.UNSET_VARIABLES).cure == (
        "helm upgrade fluence deploy/helm/fluence -n fluence-system --reuse-values "
        "--set admission.mode=policy; then delete and create the pods again"
    )
