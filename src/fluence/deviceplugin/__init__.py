"""The types of the resource document, offered to kubelets and on nodes: for those whom kube-scheduler places.

Fluence's own binding needs none of it: a kubelet ignores an extended resource that its node does not have.
"""
