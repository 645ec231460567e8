"""Manifests: which objects ask for a choice, and how the pin is written into their text."""

from __future__ import annotations

from textwrap import dedent

import pytest

from fluence.errors import InvalidInput
from fluence.select.edit import Unparsable, load, stamp
from fluence.select.workload import (
    Edit,
    PodWorkload,
    decode,
    encode,
    find_workloads,
    join,
    may_select,
    read_wish,
    split,
)

P = "fluence.flux-framework.org"


def workloads(text: str) -> list[PodWorkload]:
    return find_workloads(load(dedent(text)))


def one(text: str) -> PodWorkload:
    (workload,) = workloads(text)
    return workload


def pod(
    annotations: str = f"{P}/select-policy: min-cost", *, more: str = "", spec: str = "schedulerName: fluence"
) -> str:
    return f"kind: Pod\nmetadata: {{name: p, annotations: {{{annotations}}}{more}}}\nspec: {{{spec}}}\n"


class TestTrigger:
    @pytest.mark.parametrize(
        ("text", "wants"),
        [
            (pod(), True),
            (pod(spec="schedulerName: default-scheduler"), False),
            (pod(spec=""), False),
            (pod(spec="", more=f", labels: {{{P}/group: g}}"), True),
            (pod(annotations=""), False),
            (pod(annotations=f'{P}/select-policy: ""'), False),
            ("kind: Pod", False),
            ("", False),
            ("[]", False),
            ("text", False),
            ("metadata: text\nspec: [1]", False),
        ],
    )
    def test_a_policy_and_fluence_are_both_needed(self, text: str, wants: bool) -> None:
        assert any(w.wants_selection for w in workloads(text)) is wants

    @pytest.mark.parametrize(
        ("spec", "where"),
        [
            ("template: {spec: {schedulerName: fluence, containers: []}}", [("spec", "template")]),
            (
                "jobTemplate: {spec: {template: {spec: {schedulerName: fluence, containers: []}}}}",
                [("spec", "jobTemplate", "spec", "template")],
            ),
            (
                """replicatedJobs: [
                    {template: {spec: {template: {spec: {schedulerName: fluence, containers: []}}}}},
                    {template: {spec: {template: {spec: {containers: []}}}}}]""",
                [
                    ("spec", "replicatedJobs", 0, "template", "spec", "template"),
                    ("spec", "replicatedJobs", 1, "template", "spec", "template"),
                ],
            ),
            (
                f"template: {{metadata: {{labels: {{{P}/group: g}}}}, spec: {{containers: []}}}}",
                [("spec", "template")],
            ),
        ],
    )
    def test_pod_templates_are_found_in_any_kind(self, spec: str, where: list[tuple[str | int, ...]]) -> None:
        workload = one(pod(spec=spec))
        assert list(workload.templates) == where
        assert workload.wants_selection

    def test_a_policy_on_the_template_only_does_nothing_and_is_noticed(self) -> None:
        job = one(
            f"{{kind: Job, spec: {{template: {{metadata: {{annotations: {{{P}/select-policy: min-cost}}}}, "
            "spec: {schedulerName: fluence, containers: []}}}}"
        )
        assert not job.wants_selection
        assert job.has_misplaced_policy

    def test_lists_are_opened(self) -> None:
        found = workloads(
            "kind: List\nitems:\n- {kind: Pod, metadata: {name: a}}\n- {kind: PodList, items: [{kind: Pod}]}"
        )
        assert [(w.path, w.label) for w in found] == [
            (("items", 0), "Pod/a"),
            (("items", 1, "items", 0), "Pod"),
        ]

    def test_an_alias_that_leads_back_is_refused(self) -> None:
        with pytest.raises(Unparsable, match="refers to itself"):
            one("kind: X\nspec: &a\n  inner: [*a]\n")

    def test_a_template_that_two_objects_share_is_found_in_both(self) -> None:
        text = (
            "kind: X\nspec:\n  a: {t: &t {spec: {containers: []}}}\n  b: {t: *t}\n  c: &e [[], []]\n  d: *e\n"
        )
        assert list(one(text).templates) == [("spec", "a", "t"), ("spec", "b", "t")]

    def test_aliases_that_stand_for_too_much_are_refused(self) -> None:
        levels = "".join(f"  l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]\n" for i in range(1, 40))
        with pytest.raises(Unparsable, match="stands for over"):
            one(f"kind: X\nspec:\n  l0: &l0 [x]\n{levels}")

    @pytest.mark.parametrize(
        ("annotations", "spec", "pin"),
        [
            (f"{P}/require-backend: a", "", "a"),
            (f"{P}/backend: b", "", "b"),
            (f'{P}/require-backend: ""', "", None),
            (
                "",
                f"template: {{spec: {{containers: []}}, metadata: {{annotations: {{{P}/backend: t}}}}}}",
                "t",
            ),
            ("", "", None),
        ],
    )
    def test_pins_are_seen_wherever_they_are(self, annotations: str, spec: str, pin: str | None) -> None:
        assert one(pod(annotations, spec=spec)).pin == pin

    def test_streams_without_the_name_need_no_parser_but_escapes_do(self) -> None:
        assert not may_select("kind: Pod\n")
        assert may_select(pod())
        assert may_select('{"fluence.flux-framework.org/select\\u002dpolicy": "min-cost"}')


class TestWish:
    @pytest.mark.parametrize(
        ("annotations", "env", "shots"),
        [
            ("", "", 1000),
            (f'{P}/select-shots: " 200 "', "", 200),
            (f"{P}/select-shots: 200", "{name: N_SHOTS, value: '7'}", 200),
            ("", "{name: N_SHOTS, value: '7'}", 7),
            ("", "{name: N_SHOTS, value: many}", 1000),
            ("", "{name: N_SHOTS, valueFrom: {}}", 1000),
            ("", "{name: OTHER, value: '7'}", 1000),
        ],
    )
    def test_shots_come_from_the_annotation_then_the_variable_then_the_default(
        self, annotations: str, env: str, shots: int
    ) -> None:
        text = (
            f"{P}/select-policy: min-cost, {annotations}" if annotations else f"{P}/select-policy: min-cost"
        )
        template = f"template: {{spec: {{containers: [{{name: c}}, {{name: d, env: [{env}]}}]}}}}"
        assert read_wish(one(pod(text, spec=template))).shots == shots

    def test_bad_shots_are_refused_with_the_place(self) -> None:
        with pytest.raises(InvalidInput) as caught:
            read_wish(one(pod(f"{P}/select-policy: x, {P}/select-shots: many")))
        assert str(caught.value).startswith(f'Pod/p: annotation {P}/select-shots: bad number "many"')

    def test_candidates_and_constraints(self) -> None:
        wish = read_wish(
            one(pod(f'{P}/select-policy: x, {P}/select-candidates: "a, ,b", {P}/select-constraints: min_q=1'))
        )
        assert (wish.candidates, wish.constraints) == (["a", "b"], "min_q=1")


def check(before: str, after: str, *edits: Edit) -> None:
    assert stamp(dedent(before), edits) == dedent(after)


ROOT = Edit((), {"pin": "l4"})


class TestStamp:
    def test_comments_order_and_quotes_stay(self) -> None:
        check(
            """\
            # head
            kind: Pod   # a pod
            metadata:
              annotations:
                # why
                policy: 'x'   # because

              # after
              name: "p"
            """,
            """\
            # head
            kind: Pod   # a pod
            metadata:
              annotations:
                # why
                policy: 'x'   # because
                pin: l4

              # after
              name: "p"
            """,
            ROOT,
        )

    def test_missing_metadata_goes_before_the_spec_and_its_comment(self) -> None:
        check(
            """\
            spec:
              template:
                # the pod
                spec:
                  containers: []
            """,
            """\
            spec:
              template:
                metadata:
                  annotations:
                    pin: l4
                # the pod
                spec:
                  containers: []
            """,
            Edit(("spec", "template"), {"pin": "l4"}),
        )

    def test_missing_annotations_go_to_the_end_of_the_metadata(self) -> None:
        check(
            "metadata:\n  labels:\n    a: b\nspec: {}\n",
            "metadata:\n  labels:\n    a: b\n  annotations:\n    pin: l4\nspec: {}\n",
            ROOT,
        )

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("metadata: {annotations: {a: b}}\n", 'metadata: {annotations: {"pin": "l4", a: b}}\n'),
            ("metadata: {annotations: {}}\n", 'metadata: {annotations: {"pin": "l4"}}\n'),
            (
                "metadata:\n  annotations:\n  name: x\n",
                'metadata:\n  annotations: {"pin": "l4"}\n  name: x\n',
            ),
            ("metadata:\n  annotations: null\n", 'metadata:\n  annotations: {"pin": "l4"}\n'),
            ("metadata:\n  annotations:\n    pin: old # c\n", "metadata:\n  annotations:\n    pin: l4 # c\n"),
            ('{"metadata":{"annotations":{"pin":"old"}}}', '{"metadata":{"annotations":{"pin":"l4"}}}'),
            (
                "metadata:\n  annotations:\n    pin: |\n      old\n    b: c\n",
                "metadata:\n  annotations:\n    pin: l4\n    b: c\n",
            ),
            (
                "metadata:\n  annotations:\n    a: |\n      b\n",
                "metadata:\n  annotations:\n    a: |\n      b\n    pin: l4\n",
            ),
            ("metadata:\n  annotations:\n    a: b", "metadata:\n  annotations:\n    a: b\n    pin: l4"),
            ("metadata:\n  annotations:\n    a:\n", "metadata:\n  annotations:\n    a:\n    pin: l4\n"),
            (
                "metadata:\r\n  annotations:\r\n    a: b\r\n",
                "metadata:\r\n  annotations:\r\n    a: b\r\n    pin: l4\r\n",
            ),
            (
                "\ufeffmetadata:\n  annotations:\n    a: é\n",
                "\ufeffmetadata:\n  annotations:\n    a: é\n    pin: l4\n",
            ),
            (
                "---\nmetadata:\n  annotations:\n    a: b\n...\n",
                "---\nmetadata:\n  annotations:\n    a: b\n    pin: l4\n...\n",
            ),
            (
                "metadata:\n  annotations:\n    a: 'b\n\n      c'\n  n: m\n",
                "metadata:\n  annotations:\n    a: 'b\n\n      c'\n    pin: l4\n  n: m\n",
            ),
        ],
    )
    def test_every_way_of_writing_a_mapping(self, before: str, after: str) -> None:
        check(before, after, ROOT)

    def test_pretty_json_stays_pretty(self) -> None:
        check(
            '{\n  "metadata": {\n    "annotations": {\n      "a": "b"\n    }\n  }\n}\n',
            '{\n  "metadata": {\n    "annotations": {\n      "pin": "l4",\n      "a": "b"\n    }\n  }\n}\n',
            ROOT,
        )

    def test_json_that_no_yaml_parser_reads_is_rewritten(self) -> None:
        text = stamp('{"metadata": {"annotations": {"a": "\\ud83d\\ude00"}}, "n": 1.5}', [ROOT])
        assert load(text) == {"metadata": {"annotations": {"a": "😀", "pin": "l4"}}, "n": "1.5"}

    def test_items_of_a_list_are_edited_in_one_go(self) -> None:
        check(
            """\
            kind: List
            items:
            - metadata:
                annotations:
                  a: b
              spec: {template: {spec: {}}}
            - spec: {}
            """,
            """\
            kind: List
            items:
            - metadata:
                annotations:
                  a: b
                  pin: l4
              spec: {template: {"metadata": {"annotations": {"pin": "l4"}}, spec: {}}}
            - metadata:
                annotations:
                  pin: t4
              spec: {}
            """,
            Edit(("items", 0), {"pin": "l4"}),
            Edit(("items", 0, "spec", "template"), {"pin": "l4"}),
            Edit(("items", 1), {"pin": "t4"}),
        )

    def test_what_an_alias_shares_is_not_changed_elsewhere(self) -> None:
        before = (
            "items:\n- metadata:\n    annotations: &a # common\n      x: y\n"
            "- metadata:\n    annotations: *a # same\n- metadata: {annotations: {z: w}}\n"
        )
        text = stamp(before, [Edit(("items", 1), {"pin": "l4"})])
        assert load(text) == {
            "items": [
                {"metadata": {"annotations": {"x": "y"}}},
                {"metadata": {"annotations": {"x": "y", "pin": "l4"}}},
                {"metadata": {"annotations": {"z": "w"}}},
            ]
        }
        assert "# common" in text

    def test_annotations_from_a_merge_key_are_kept(self) -> None:
        before = "x: &m\n  annotations: {a: b}\nmetadata:\n  <<: *m\n  name: p\n"
        loaded = load(stamp(before, [ROOT]))
        assert isinstance(loaded, dict)
        assert loaded["metadata"] == {"annotations": {"a": "b", "pin": "l4"}, "name": "p"}
        assert loaded["x"] == {"annotations": {"a": "b"}}

    @pytest.mark.parametrize(
        "name", ["yes", "null", "1e3", "0x10", "a: b", "it's", "é", "x #y", "", "-", "2001-01-01"]
    )
    def test_any_name_is_read_back_as_itself(self, name: str) -> None:
        text = stamp("metadata:\n  annotations:\n    a: b\n", [Edit((), {"pin": name})])
        assert load(text) == {"metadata": {"annotations": {"a": "b", "pin": name}}}

    def test_what_cannot_be_written_safely_is_refused(self) -> None:
        shared = "items: [&t {metadata: {annotations: {a: b}}}, *t]\n"
        with pytest.raises(InvalidInput, match="without changing something else"):
            stamp(shared, [Edit(("items", 1), {"pin": "l4"})])


class TestStream:
    @pytest.mark.parametrize(
        ("text", "documents"),
        [
            ("", []),
            ("a: b\n", ["a: b\n"]),
            ("a: b\n---\nc: d\n", ["a: b\n", "---\nc: d\n"]),
            ("---\na\n--- # c\nb", ["---\na\n", "--- # c\nb"]),
            ("a: |\n  ---\n  b\n----\n", ["a: |\n  ---\n  b\n----\n"]),
            ("a\r\n---\r\nb", ["a\r\n", "---\r\nb"]),
            ('{"a": 1}\n{"b": 2}', ['{"a": 1}\n', '{"b": 2}']),
            ('{"a": 1}\n---\n{"b": 2}', ['{"a": 1}\n', '---\n{"b": 2}']),
            ("a\n---", ["a\n", "---"]),
        ],
    )
    def test_documents_are_split_at_markers(self, text: str, documents: list[str]) -> None:
        assert split(text) == documents

    def test_any_bytes_survive(self) -> None:
        data = bytes(range(256))
        assert encode(decode(data)) == data

    def test_several_streams_become_one(self) -> None:
        assert join([["a: b"], ['{"c": 1}', '{"d": 2}'], ["---\ne\n", "---\nf\n"]]) == (
            '---\na: b\n---\n{"c": 1}\n---\n{"d": 2}\n---\ne\n---\nf\n'
        )
