"""The audit: the original's keys, small, and nothing of the user's account."""

from __future__ import annotations

import json

from fluence.select import Backend, choose, parse_pipeline
from fluence.select.engine import AUDITED_CANDIDATES, AUDITED_DROPS, audit

NOW = "2026-11-15T12:00:00Z"


def audited(policy: str, backends: dict[str, Backend], offers: list[str] | None = None) -> dict[str, object]:
    text = audit(choose(policy, parse_pipeline(policy), backends, offers=offers), resolved_at=NOW)
    assert text.isascii()
    result: dict[str, object] = json.loads(text)
    return result


def test_it_has_the_keys_of_the_original_and_the_time() -> None:
    backends = {
        "l4": Backend("l4", region="r", provider="generic", attributes={"cost_usd": 0.8, "memory_gb": 24.0}),
        "t4": Backend("t4", attributes={"cost_usd": 0.9}),
    }
    assert audited("min-cost", backends) == {
        "chosen": "l4",
        "policy": "min-cost",
        "candidates": [
            {"name": "l4"},
        ],
        "dropped": {"t4": "min-cost"},
        "notes": [
            "scheduler offerings unknown (ConfigMap unavailable); selecting over all provided backends"
        ],
        "resolved_at": NOW,
    }


def test_empty_keys_are_left_out_as_in_the_original() -> None:
    assert sorted(audited("min-x", {"a": Backend("a", attributes={"x": 1})}, ["a"])) == [
        "candidates",
        "chosen",
        "policy",
        "resolved_at",
    ]


def test_no_price_and_no_other_attribute_enters_the_cluster() -> None:
    numbers = {"cost_usd": 0.87654, "queue_size": 4321.0}
    backends = {
        "l4": Backend("l4", attributes=numbers, strings={"account": "team-7"}),
        "t4": Backend("t4", attributes={"cost_usd": 1.2345}),
        "old": Backend("old", attributes={"cost_usd": 0.11}),
    }
    text = json.dumps(audited("min-cost", backends, ["l4", "t4"]))
    for private in ("0.87654", "1.2345", "0.11", "4321", "team-7", "cost_usd"):
        assert private not in text


def test_what_a_query_answered_stays_with_the_user() -> None:
    secret = "AccessDenied: User: arn:aws:iam::123456789012:user/ada is not authorized"
    failed = {"status": "UNKNOWN", "query_error": secret}
    backends = {"a": Backend("a"), "b": Backend("b", strings=failed)}
    assert "123456789012" not in json.dumps(audited("online-only", backends))
    kept = {"a": Backend("a", attributes={"x": 1}, strings=failed)}
    assert "123456789012" not in json.dumps(audited("min-x", kept))


def test_it_stays_small_and_says_so() -> None:
    backends = {f"b{i:03}": Backend(f"b{i:03}", attributes={"x": i // 100}) for i in range(300)}
    record = audited("min-x", backends, sorted(backends))
    assert len(record["candidates"]) == AUDITED_CANDIDATES  # type: ignore[arg-type]
    assert len(record["dropped"]) == AUDITED_DROPS  # type: ignore[arg-type]
    assert record["notes"] == ["230 more backends are left out here"]
