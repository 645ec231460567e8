"""Live objects into a graph: nodes, pods and their rules as columns, changed as the cluster changes."""
