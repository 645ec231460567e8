"""A real Kubernetes control plane on this machine, without Docker: for tests, demos and a first try.

``sandbox`` starts and stops it, ``programs`` and ``gobuild`` find or build what it runs, ``nodes`` and the
KWOK stages make machines that are not there, ``realnodes`` those that run containers; ``audit`` proves that
nobody overbooked them, ``proxy`` puts faults in the way.
"""
