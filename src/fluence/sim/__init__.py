"""The room of the simulator: a workload and a cluster in, figures and pictures out, the live queue between.

    workload.read ──► Workload ─┐
                                ├─► simulator ──► Record … ──► measure ──► report, pictures, page
    platform.read ──► Platform ─┘

Times inside are whole milliseconds, so that arrivals scaled by a half are exact; reports are in seconds.
"""
