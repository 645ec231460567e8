"""The gang placer: places the pods of a gang on live nodes by the rules of Kubernetes, all or nothing.

`fluence.match` is the other engine: it places jobspecs on any graph, as Fluxion does. Both write to one
ledger.
"""
