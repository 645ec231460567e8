"""The data the rooms talk about: jobspecs, their constraints, and the sets of ids and hosts in them.

Everything here is frozen and pure: no I/O, no clock, no numpy. Text from outside is read once, at this
border, and every fault in it is named with its place; what comes out is trusted by every room above.
"""
