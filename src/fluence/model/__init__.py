"""The data the rooms talk about: jobspecs and their constraints, pods, nodes and groups.

Everything here is frozen and pure: no I/O, no clock, no numpy. Text from outside is read once, at this
border, and every fault in it is named with its place; what comes out is trusted by every room above.

The Kubernetes structs are narrow: they hold the fields that a scheduler reads and msgspec skips the rest,
which is what makes a list of thousands of pods cheap. They decode straight from the API's JSON (camelCase
there, Python names here). ``gc=False`` keeps them out of the garbage collector's rounds; they never form
cycles.
"""
