"""The resource graph, the ledger of allocations, and file formats.

Pure: no clock, no Kubernetes, and no I/O except reading and writing graph files. `match`, above it, searches
the graph.
"""

from fluence.graph.columns import Tree
from fluence.graph.graph import Batch, ResourceGraph

__all__ = ["Batch", "ResourceGraph", "Tree"]
