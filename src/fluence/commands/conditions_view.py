"""Conditions view: the queue as far as pods' conditions show it, for when the view API does not answer.

The scheduler writes on each waiting pod why it waits and when it starts. So the rows here have no place in
the queue, no planned nodes, and only the pods that the user may list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from json import JSONDecodeError, loads
from typing import Any, Final

from fluence import names
from fluence.commands.view_api import Unanswered, ViewClient

_GROUP_LABELS: Final = (names.GROUP_LABEL, "scheduling.k8s.io/pod-group", "scheduling.x-k8s.io/pod-group")
_PAGE: Final = 500
Row = dict[str, Any]


def rows(
    client: ViewClient,
    namespace: str | None,
    query: Mapping[str, str] | None = None,
    *,
    running: bool = False,
) -> list[Row]:
    """The gangs and arrays of a namespace, or of all. ``running``: also those without a waiting pod.
    ``query``: the filters of the view API, without `@me`."""
    wanted = dict(query or {})
    path = f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"
    page_query = {"limit": str(_PAGE), "fieldSelector": "spec.schedulerName!=default-scheduler"}
    if wanted.get("labelSelector"):
        page_query["labelSelector"] = wanted["labelSelector"]
    gangs: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    while True:
        page = client.get(path, page_query)
        for pod in page.get("items") or ():
            if _is_ours(pod):
                gangs.setdefault(_gang(pod, expand=bool(wanted.get("expand"))), []).append(pod)
        if not page["metadata"].get("continue"):
            break
        page_query["continue"] = page["metadata"]["continue"]
    found = (_row(key, pods, running=running) for key, pods in gangs.items())
    return sorted((row for row in found if row is not None and _is_wanted(row, wanted)), key=_order)


def _is_wanted(row: Row, query: Mapping[str, str]) -> bool:
    return all(
        row[field] in query[key].split(",")
        for key, field in (("user", "user"), ("state", "state"), ("queue", "queue"), ("name", "name"))
        if key in query
    )


def groups(found: Iterable[Row]) -> list[Row]:
    """The rows of `groups`, from those of `jobs`."""
    shown = []
    for row in found:
        counts = row.get("array") or {}
        waiting = counts.get("waiting", row["pods"] if row["state"] == "pending" else 0)
        placed = counts.get("running", 0 if row["state"] == "pending" else row["pods"])
        kept = {key: row[key] for key in ("namespace", "name", "kind", "state", "user", "queue")}
        shown.append({**kept, "size": row["pods"], "waiting": waiting, "placed": placed})
    return shown


def _is_ours(pod: Mapping[str, Any]) -> bool:
    """Whether a pod belongs to Fluence: by the usual scheduler name, or by its report."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    told = any(each.get("type") == names.WAIT_REPORTED for each in conditions)
    return told or (pod.get("spec") or {}).get("schedulerName") == names.SCHEDULER


def by_name(client: ViewClient, namespace: str, name: str) -> list[Row]:
    """The gang with this name, or that of a pod with this name."""
    found = rows(client, namespace, running=True)
    return [row for row in found if row["name"] == name] or [row for row in found if name in row["members"]]


def says(error: Unanswered) -> str:
    """The line that says where the rows come from."""
    return (
        f"the view API does not answer ({error}); shown is what pods' conditions say, without places and plan"
    )


def _gang(pod: Mapping[str, Any], *, expand: bool) -> tuple[str, str, str]:
    """Namespace, name and kind of the gang of a pod, from the pod alone."""
    meta = pod["metadata"]
    labels = meta.get("labels") or {}
    group = ((pod.get("spec") or {}).get("schedulingGroup") or {}).get("podGroupName") or ""
    if group.endswith(names.POD_GROUP_SUFFIX):
        group = ""  # it lists a gang that labels and owners name
    group = group or next((labels[key] for key in _GROUP_LABELS if labels.get(key)), "")
    if group:
        return meta["namespace"], group, "Group"
    owner = next((each for each in meta.get("ownerReferences") or () if each.get("controller")), None)
    if owner is not None and not expand:
        return meta["namespace"], owner["name"], owner["kind"]
    return meta["namespace"], meta["name"], "Pod"


def _row(key: tuple[str, str, str], pods: list[Mapping[str, Any]], *, running: bool) -> Row | None:
    """One row for all pods of a gang or a Job; None if there is nothing to show."""
    namespace, name, kind = key
    alive = [pod for pod in pods if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
    waiting = [pod for pod in alive if not (pod.get("spec") or {}).get("nodeName")]
    placed = [pod for pod in alive if (pod.get("spec") or {}).get("nodeName")]
    shown = (placed or waiting) if running else waiting
    if not shown:
        return None
    conditions = [each for pod in waiting for each in (pod.get("status") or {}).get("conditions") or ()]
    told = _report(conditions)
    sentence = next((each["message"] for each in conditions if _explains(each)), "")
    notes = shown[0]["metadata"].get("annotations") or {}
    reasons = [{"code": told.get("code", ""), "message": sentence.rstrip(".")}] if sentence else []
    is_array = kind == "Job" and len(pods) > 1
    done = sum((pod.get("status") or {}).get("phase") == "Succeeded" for pod in pods)
    counts = {"size": len(pods), "waiting": len(waiting), "running": len(placed), "done": done}
    return {
        "state": "running" if running and placed else "pending",
        "namespace": namespace,
        "name": name,
        "kind": kind,
        "user": notes.get(names.USER, ""),
        "queue": notes.get(names.QUEUE, ""),
        "pods": len(pods) if is_array else len(shown),
        **({"array": counts} if is_array else {}),
        "nodes": sorted({pod["spec"]["nodeName"] for pod in (placed if running else ())}),
        "submitted": min(pod["metadata"]["creationTimestamp"] for pod in shown),
        **({"noLaterThan": told["noLaterThan"]} if told.get("noLaterThan") else {}),
        **({"expected": told["expected"]} if told.get("expected") else {}),
        "firm": told.get("restsOn") == "limits",
        "reasons": reasons,
        "members": [pod["metadata"]["name"] for pod in alive],
    }


def _explains(condition: Mapping[str, Any]) -> bool:
    is_waiting = condition.get("type") == "PodScheduled" and condition.get("status") == "False"
    return is_waiting and bool(condition.get("message"))


def _report(conditions: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The report of the scheduler for programs; empty if it cannot be read."""
    for condition in conditions:
        if condition.get("type") == names.WAIT_REPORTED and condition.get("status") == "True":
            try:
                told = loads(condition.get("message") or "")
            except (JSONDecodeError, RecursionError):
                continue
            if isinstance(told, dict):
                return {"code": condition.get("reason", ""), **told}
    return {}


def _order(row: Row) -> tuple[bool, str, str]:
    return row["state"] != "pending", row["submitted"], row["name"]
