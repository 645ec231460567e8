"""The room of the simulator: a workload and a cluster in, figures and pictures out, and two engines between.

    workload.read ──► TraceWorkload ────┐
                                        ├─► simulator     the queue over the matcher   ─┐
    platform.read ──► Platform ─────────┘                                               ├─► Record …
    read_manifests ─► ManifestWorkload ─┐                                               │
                                        ├─► live_cycle    the live scheduler's cycle   ─┘
    nodes ──────────► EmbeddedCluster ──┘

    Record … ──► measure ──► report, pictures, page

Times inside are whole milliseconds, so that arrivals scaled by a half are exact; reports are in seconds.
"""
