"""The hand-off: variables and equal limits for containers that ask for a device, and for no others."""

import copy

import pytest

from fluence import names
from fluence.model.external_resources import BASE
from tests.unit.admission.objects import QPU, admitted, container, pod, variables_of

BY_ANNOTATION = {name: f"metadata.annotations['{key}']" for name, key in BASE.items()}


@pytest.mark.parametrize("side", ["limits", "requests"])
def test_a_container_that_asks_gets_the_variables(side: str) -> None:
    made = admitted(pod(container(**{side: {QPU: 1}}))).object  # type: ignore[arg-type]
    assert variables_of(made) == BY_ANNOTATION


@pytest.mark.parametrize("side", ["limits", "requests"])
def test_what_is_given_on_one_side_only_is_copied_to_the_other(side: str) -> None:
    made = admitted(pod(container(**{side: {QPU: "2", "cpu": "1"}}))).object  # type: ignore[arg-type]
    resources = made["spec"]["containers"][0]["resources"]
    assert resources["limits"][QPU] == resources["requests"][QPU] == "2"
    other = "requests" if side == "limits" else "limits"
    assert "cpu" not in resources[other], "what is no device is not ours"


def test_sides_that_differ_are_left_for_the_server_to_refuse() -> None:
    made = admitted(pod(container(limits={QPU: 1}, requests={QPU: 2}))).object
    assert made["spec"]["containers"][0]["resources"] == {"limits": {QPU: 1}, "requests": {QPU: 2}}


def test_a_container_that_does_not_ask_gets_nothing() -> None:
    made = admitted(pod(container("a", limits={QPU: 1}), container("b", limits={"cpu": 1}))).object
    assert variables_of(made, 0)
    assert made["spec"]["containers"][1] == container("b", limits={"cpu": 1})


def test_init_containers_that_ask_get_them_too() -> None:
    found = pod(container())
    found["spec"]["initContainers"] = [container("i", limits={QPU: 1}), container("j")]
    made = admitted(found).object
    assert variables_of(made, 0, "initContainers") == BY_ANNOTATION
    assert variables_of(made, 1, "initContainers") == variables_of(made) == {}


def test_a_name_that_the_container_sets_is_its_own() -> None:
    own = [{"name": "QRMI_BACKEND", "value": "mine"}, {"name": "X", "value": "$(FLUXION_BACKEND)"}]
    made = admitted(pod(container(env=own, limits={QPU: 1}))).object
    assert variables_of(made)["QRMI_BACKEND"] == "mine"
    assert made["spec"]["containers"][0]["env"][-2:] == own, "ours stand first, so that X can refer to them"
    assert [each["name"] for each in made["spec"]["containers"][0]["env"]].count("QRMI_BACKEND") == 1


def test_the_names_are_a_table() -> None:
    made = admitted(pod(container(limits={QPU: 1})), variables={"B": "x/b", "A": "x/a"}).object
    assert list(variables_of(made).items()) == [
        ("A", "metadata.annotations['x/a']"),
        ("B", "metadata.annotations['x/b']"),
    ]


@pytest.mark.parametrize("scheduler", ["", "default-scheduler", "volcano"])
def test_pods_of_other_schedulers_are_as_they_were(scheduler: str) -> None:
    found = pod(
        container(limits={QPU: 1}),
        scheduler=scheduler,
        annotations={names.COORDINATION: "shared", names.GROUP_SIZE: "3", names.COMPLETION_INDEX: "0"},
    )
    before = copy.deepcopy(found)
    made = admitted(found)
    assert made.object is found
    assert found == before
    assert not made.patch


def test_the_object_that_came_in_is_not_touched() -> None:
    found = pod(container(limits={QPU: 1}))
    before = copy.deepcopy(found)
    assert admitted(found).patch
    assert found == before


def test_null_is_absent() -> None:
    found = pod(container(limits={QPU: 1}))
    found["spec"]["containers"][0]["env"] = None
    found["spec"]["initContainers"] = None
    found["metadata"]["labels"] = None
    assert variables_of(admitted(found).object) == BY_ANNOTATION
