"""`make e2e` reads what Ginkgo reports, and compares it with docs/conformance.md."""

from __future__ import annotations

from tests.e2e.__main__ import BEGIN, END, PAGE, Spec, differences, expected, read, written

REPORT = [
    {
        "SpecReports": [
            {
                "ContainerHierarchyTexts": ["[sig-scheduling] Predicates [Serial]"],
                "LeafNodeType": "It",
                "LeafNodeText": "respects taints",
                "State": "passed",
                "RunTime": 2_000_000_000,
            },
            {
                "ContainerHierarchyTexts": ["[sig-scheduling] Preemption"],
                "LeafNodeType": "It",
                "LeafNodeText": "preempts",
                "State": "timedout",
                "RunTime": 61_500_000_000,
                "Failure": {"Message": "pod never\n  started"},
            },
            {
                "ContainerHierarchyTexts": ["[sig-storage] CSI"],
                "LeafNodeType": "It",
                "LeafNodeText": "mounts",
                "State": "skipped",
                "RunTime": 0,
            },
            {
                "ContainerHierarchyTexts": None,
                "LeafNodeType": "SynchronizedBeforeSuite",
                "LeafNodeText": "",
                "State": "passed",
                "RunTime": 1,
            },
        ]
    }
]
PREDICATE = Spec("[sig-scheduling] Predicates [Serial] respects taints", "passed", 2.0)
PREEMPTION = Spec("[sig-scheduling] Preemption preempts", "failed", 61.5, "pod never started")


def test_specs_that_ran_are_read_with_their_verdicts() -> None:
    assert read(REPORT) == [PREDICATE, PREEMPTION]


def test_a_page_is_written_and_read_again() -> None:
    page = written(f"# Title\n\n{BEGIN}\nold\n{END}\n\nEnd.\n", [PREDICATE, PREEMPTION])
    assert page.startswith(f"# Title\n\n{BEGIN}\n1 of 2 pass.\n") and page.endswith(f"{END}\n\nEnd.\n")
    assert expected(page) == {PREDICATE.name: "passed", PREEMPTION.name: "failed"}
    assert written(page, [PREDICATE, PREEMPTION]) == page
    assert differences([PREDICATE, PREEMPTION], page) == []


def test_other_verdicts_and_unknown_specs_are_differences() -> None:
    page = written(f"{BEGIN}{END}", [PREEMPTION])
    better = PREEMPTION._replace(verdict="passed")
    assert [line.rpartition(" says ")[2] for line in differences([PREDICATE, better], page)] == [
        "nothing",
        "failed",
    ]


def test_the_page_has_a_place_for_verdicts() -> None:
    assert PAGE.read_text().count(BEGIN) == PAGE.read_text().count(END) == 1
