"""What each provider makes of its input, and how their answers merge."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fluence.errors import InvalidInput
from fluence.select.policies import Backend, BackendRequest, merge, priced
from fluence.select.providers import BackendAnswer, BackendQuery, ProviderFailed, gather
from fluence.select.providers.braket import read_device, read_queue_size, region_of
from fluence.select.providers.configmap import Unreadable, describe, find_names, find_types, parse_resources
from fluence.select.providers.file import FileProvider, parse_attributes


class TestCost:
    def test_per_task_and_per_shot(self) -> None:
        attributes = priced({"cost_per_task": 0.30, "cost_per_shot": 0.001}, shots=1000)
        assert attributes["cost_usd"] == 1.30

    def test_one_component_is_enough_and_the_other_is_nothing(self) -> None:
        assert priced({"cost_per_shot": 0.01}, shots=200)["cost_usd"] == 2.0
        assert priced({"cost_per_task": 0.3}, shots=200) == {
            "cost_per_task": 0.3,
            "cost_per_shot": 0.0,
            "cost_usd": 0.3,
        }

    def test_components_win_over_a_given_cost(self) -> None:
        assert priced({"cost_per_task": 0.3, "cost_usd": 9}, shots=1)["cost_usd"] == 0.3

    def test_minutes_count_as_three_seconds_where_nothing_else_is_known(self) -> None:
        assert priced({"cost_per_minute": 0.075}, shots=1)["cost_usd"] == pytest.approx(0.00375)
        assert priced({"cost_per_minute": 0.075, "cost_usd": 2}, shots=1)["cost_usd"] == 2


class TestFile:
    def test_all_fields_are_read_from_yaml_and_json_alike(self, tmp_path: Path) -> None:
        text = (
            '{"version": 1, "backends": [{"name": "x", "device_arn": "arn", "region": "r", "provider": "p",'
            ' "cost_per_task": 0.3, "cost_per_shot": 0.001, "cost_per_minute": 1, "qubits": 5,'
            ' "attributes": {"memory_gb": 24}, "strings": {"family": "ada"}}]}'
        )
        path = tmp_path / "attributes.json"
        path.write_text(text)
        (backend,) = FileProvider(str(path)).fetch(BackendQuery(BackendRequest(1000))).backends
        assert backend == Backend(
            "x",
            "arn",
            "r",
            "p",
            {
                "memory_gb": 24,
                "cost_per_task": 0.3,
                "cost_per_shot": 0.001,
                "cost_per_minute": 1,
                "qubits": 5,
                "cost_usd": 1.3,
            },
            {"family": "ada"},
        )

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "attribute file a.yaml has no backends"),
            ("backends: []", "attribute file a.yaml has no backends"),
            ("version: 1", "attribute file a.yaml has no backends"),
            ("- name: x", "parse attribute file a.yaml: Expected `object`, got `array`"),
            ("backends: [{name: x}", "parse attribute file a.yaml: line 2: "),
            ("version: 2\nbackends: [{name: x}]", "version 2 is not known (want 1)"),
            ("backends: [{region: r}]", "backends[0]: Object missing required field `name`"),
            ("backends: [{name: x}, {name: x}]", 'backends[1]: "x" is described twice'),
            ("backends: [{name: ''}]", "backends[0]: name is empty"),
            (
                "backends: [{name: x, attributes: {c: cheap}}]",
                "backends[0].attributes.c (x): Expected `float`",
            ),
            (
                "backends: [{name: x, qubits: '9'}]",
                "backends[0].qubits (x): Expected `float | null`, got `str`",
            ),
            ("backends: [{name: x, attributes: {c: .nan}}]", "c of x is nan, not a finite number"),
            ("backends: [{name: x, cost_per_shot: -1}]", "cost_per_shot of x is less than 0"),
            ("backends: [{name: 7}]", "backends[0].name (7): Expected `str`, got `int`"),
            ("backends: [x]", "backends[0]: Expected `object`, got `str`"),
        ],
    )
    def test_a_bad_file_is_refused_in_one_line_that_names_the_place(self, text: str, message: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            parse_attributes(text, where="attribute file a.yaml")
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_a_field_that_means_nothing_is_warned_of_with_the_cure(self) -> None:
        (warning,) = parse_attributes("backends: [{name: x, memory_gb: 24}]", where="a.yaml").warnings
        assert warning.startswith("a.yaml: backends[0] (x): field memory_gb means nothing; numbers go under")


class TestConfigMap:
    def test_names_are_found_at_any_depth_and_in_any_schema(self) -> None:
        tree = "resources: [{type: rack, name: r, with: [{type: qpu, name: sv1}]}]\nattributes: {a: {b: c}}"
        for body, names in [
            ("- name: gpu-a100\n- name: gpu-l4\n", {"gpu-a100", "gpu-l4"}),
            ("backends: [{name: sv1, num_qubits: 34}]", {"sv1"}),
            (tree, {"r", "sv1"}),
            ('{"resources": [{"type": "qpu", "name": "sv1"}]}', {"sv1"}),
        ]:
            assert set(find_names(parse_resources(body))) == names

    @pytest.mark.parametrize("body", ["", "# nothing\n", "a: b", "resources: [", "just text"])
    def test_what_names_nothing_is_unreadable(self, body: str) -> None:
        with pytest.raises(Unreadable):
            parse_resources(body)

    def test_the_older_schema_gives_attributes(self) -> None:
        (backend,) = describe({"backends": [{"name": "sv1", "num_qubits": 34, "vendor": "aws"}]})
        assert (backend.attributes, backend.strings) == ({"num_qubits": 34, "qubits": 34}, {"vendor": "aws"})

    def test_the_newer_schema_inherits_overrides_and_clears(self) -> None:
        resources = {
            "attributes": {"braket": {"vendor": "aws", "qubits": "34", "region": "us-east-1"}},
            "resources": [
                {
                    "type": "gateway",
                    "name": "g",
                    "attributes": "braket",
                    "with": [{"type": "qpu", "name": "q", "attributes": {"qubits": 9, "vendor": ""}}],
                },
                {"type": "rack", "name": "bare"},
            ],
        }
        first, second = describe(resources)
        assert first == Backend("g", region="us-east-1", attributes={"qubits": 34}, strings={"vendor": "aws"})
        assert second == Backend("q", region="us-east-1", attributes={"qubits": 9})


class TestBraket:
    @pytest.mark.parametrize(
        ("text", "size"), [("0", 0), (" 12 ", 12), (">4000", 4001), (">many", 1e9), ("", 1e9), ("-1", 1e9)]
    )
    def test_queue_sizes(self, text: str, size: float) -> None:
        assert read_queue_size(text) == size

    def test_the_normal_queue_of_tasks_counts(self) -> None:
        answer = {
            "deviceStatus": "ONLINE",
            "deviceQueueInfo": [
                {"queue": "QUANTUM_TASKS_QUEUE", "queueSize": "13", "queuePriority": "Normal"},
                {"queue": "QUANTUM_TASKS_QUEUE", "queueSize": "2", "queuePriority": "Priority"},
                {"queue": "JOBS_QUEUE", "queueSize": "99"},
            ],
        }
        backend = read_device("x", answer)
        assert (backend.attributes, backend.strings) == ({"queue_size": 13}, {"status": "ONLINE"})

    def test_a_failure_is_a_status(self) -> None:
        assert read_device("x", "down").strings == {"status": "UNKNOWN", "query_error": "down"}

    def test_the_region_comes_from_the_arn_where_none_is_given(self) -> None:
        arn = "arn:aws:braket:eu-north-1::device/qpu/iqm/Garnet"
        assert region_of(Backend("x", device_arn=arn)) == "eu-north-1"
        assert region_of(Backend("x", device_arn=arn, region="r")) == "r"
        assert (
            region_of(Backend("x", device_arn="arn:aws:braket:::device/quantum-simulator/amazon/sv1")) is None
        )


class Fixed:
    """A provider that says what it is told to."""

    def __init__(self, name: str, answer: BackendAnswer, supplies: frozenset[str] | None = None) -> None:
        self.name = name
        self.supplies = supplies
        self.answer = answer
        self.asked: list[BackendQuery] = []

    def fetch(self, ask: BackendQuery) -> BackendAnswer:
        self.asked.append(ask)
        return self.answer


class TestGather:
    def test_later_providers_fill_and_override_but_identity_stays(self) -> None:
        merged = merge(
            [
                ("a", [Backend("x", region="r1", attributes={"cost_usd": 1, "qubits": 2})]),
                ("b", [Backend("x", "arn", "r2", None, {"cost_usd": 3}, {"status": "ONLINE"}), Backend("y")]),
            ]
        )
        assert merged["x"] == Backend(
            "x",
            "arn",
            "r1",
            None,
            {"cost_usd": 3, "qubits": 2},
            {"status": "ONLINE"},
            {"cost_usd": "b", "qubits": "a", "status": "b"},
        )
        assert set(merged) == {"x", "y"}

    def test_a_provider_is_asked_only_for_what_a_policy_needs(self) -> None:
        live = Fixed("live", BackendAnswer(), frozenset({"queue_size"}))
        gather([live], BackendRequest(), needs=frozenset({"cost_usd"}))
        assert live.asked == []
        gather([live], BackendRequest(), needs=frozenset({"cost_usd", "queue_size"}))
        assert len(live.asked) == 1

    def test_a_provider_is_told_only_of_backends_that_can_still_be_chosen(self) -> None:
        offers = Fixed("offers", BackendAnswer(offers=frozenset({"a", "b"})))
        file = Fixed("file", BackendAnswer([Backend("a"), Backend("b"), Backend("c")]))
        live = Fixed("live", BackendAnswer())
        gather([offers, file, live], BackendRequest(), needs=frozenset(), only=["b", "c"])
        assert set(live.asked[0].known) == {"b"}

    def test_somebody_elses_crash_is_named(self) -> None:
        class Broken(Fixed):
            def fetch(self, ask: BackendQuery) -> BackendAnswer:
                raise ZeroDivisionError("division by zero")

        with pytest.raises(ProviderFailed, match="provider prices: ZeroDivisionError: division by zero"):
            gather([Broken("prices", BackendAnswer())], BackendRequest(), needs=frozenset())


def test_offers_have_their_types_and_those_of_their_parts() -> None:
    document = yaml.safe_load(
        """
        resources:
        - {type: qpu, name: sv1, with: [{type: qubit, count: 34}]}
        - {type: licence, name: solver, count: 4, attributes: {vendor: example}}
        """
    )
    assert find_types(document) == {"sv1": {"qpu", "qubit"}, "solver": {"licence"}}
    assert find_types({"backends": [{"name": "fez"}]}) == {"fez": {"qpu", "qubit"}}
    assert find_types(["nonsense"]) == {}
