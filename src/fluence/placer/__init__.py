"""The gang placer: pods of a gang on the nodes of a live cluster, by Kubernetes' rules, all or nothing.

`fluence.match` is the other engine: it answers jobspecs on any graph, as Fluxion does. Both write to one
ledger.
"""
