"""The shared data: jobspecs and their constraints, pods, nodes and groups.

Everything here is frozen and pure: no I/O, no clock, no numpy. Text from outside is parsed once, in this
room, and errors name the place in the text. Rooms above trust the result.

The Kubernetes structs are narrow: they have the fields that a scheduler reads, and msgspec skips the rest, so
a list of thousands of pods is cheap. They decode directly from the JSON of the API (camelCase there, Python
names here). ``gc=False`` excludes them from garbage collection; they never form cycles.
"""
