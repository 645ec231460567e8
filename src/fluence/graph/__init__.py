"""The resource graph: what there is, who holds it and when, and its file formats.

Pure: no clock, no I/O beyond the text handed in, no Kubernetes. Lower than `match`, which searches it.
"""

from fluence.graph.batch import Batch
from fluence.graph.graph import ResourceGraph
from fluence.graph.tree import Tree

__all__ = ["Batch", "ResourceGraph", "Tree"]
