"""Device plugin: offers the types of the resource document to kubelets and on nodes, for pods of
kube-scheduler.

Pods that Fluence binds do not need it: a kubelet ignores an extended resource that its node does not have.
"""
