"""A real Kubernetes control plane on this machine, without Docker: for tests, demos and a first try.

``sandbox`` starts and stops it, ``programs`` finds or builds its programs, ``nodes`` and the KWOK stages
simulate nodes, and ``realnodes`` makes nodes that run containers. ``audit`` proves that no node was
overcommitted, and ``proxy`` injects faults.
"""
