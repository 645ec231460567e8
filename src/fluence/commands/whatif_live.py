"""What `whatif` does on a cluster: lists it once, and asks a copy of the scheduler about new manifests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from fluence import names
from fluence.clock import ManualClock, SystemClock
from fluence.commands.cluster import Unlisted, ask_leader, copying, list_as, users_as
from fluence.errors import FluenceError
from fluence.model.queue_documents import QueueObject, parse_tree
from fluence.sim.cluster import EmbeddedCluster
from fluence.sim.live_cycle import ask_what_if, parse_manifests


def ask_cluster(
    sources: Sequence[tuple[bytes, str]],
    *,
    policy: str | None = None,
    kubeconfig: str | None,
    context: str | None,
    config: str | None = None,
    namespace: str | None,
    queues: str | None = None,
    unanswered: FluenceError | None = None,
) -> Any:
    """The answer about the manifests of all sources together: (text, name). ``queues``: a file with queues,
    instead of those of the cluster. ``unanswered``: why the view API gave no answer."""
    tree = None if queues is None else parse_tree(Path(queues).read_bytes(), source=queues)
    documents, notes = [], []
    for text, name in sources:
        found, left_out = parse_manifests(text, source=name)
        documents += found
        notes += left_out
    flags: dict[str, object] = {} if policy is None else {"queue_policy": policy}
    leader = ask_leader(kubeconfig, context, config, flags, environ={})
    for document in documents:
        document["metadata"].setdefault("namespace", namespace or leader.access.namespace)
    try:
        with copying():
            listing = list_as(leader)
    except Unlisted:
        raise unanswered or Unlisted() from None
    if unanswered is not None:
        click.echo(f"note: {unanswered}; this is worked out on a copy of the cluster", err=True)
    if tree is not None:
        listing.queues = [QueueObject.of(queue) for queue in tree.queues.values()]
    cluster = EmbeddedCluster((), settings=leader.settings, clock=ManualClock(SystemClock().now()))
    guard, user = users_as(leader)
    for document in documents if user else ():
        notes_of = document["metadata"].get("annotations") or {}
        document["metadata"]["annotations"] = {**notes_of, names.SUBMITTED_BY: user}
    cluster.load(listing, guard=guard)
    answer = ask_what_if(cluster, documents)
    for note in (*notes, *answer.notes):
        click.echo(f"note: {note}", err=True)
    for fault in cluster.plugin_faults:
        click.echo(f"note: plug-in failed: {fault}", err=True)
    return answer
