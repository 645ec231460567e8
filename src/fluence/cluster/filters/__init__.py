"""The filters and scores of kube-scheduler, one module per plugin, for all nodes at once.

| kube-scheduler's plugin | module |
|---|---|
| NodeUnschedulable, TaintToleration | `taints`: also cordoned nodes, and nodes that are not ready |
| NodeAffinity | `node_affinity`: nodeSelector and node affinity |
| NodeResourcesFit | `fluence.placer.node_table`; `fluence.cluster.diagnosis` says what a node lacks |
| NodeResourcesFit, of external resources that nodes advertise | `devices` |
| NodePorts | `ports` |
| InterPodAffinity | `interpod_affinity` |
| PodTopologySpread | `topology_spread` |
| VolumeBinding, VolumeZone, VolumeRestrictions | `volumes` |
| NodeVolumeLimits | `csi_limits` |

Two modules combine them. `node_rules`: the rules of a pod about its node, with one mask and one score for
each distinct rule. `gang_rules`: the rules of the pods of a gang about other pods, which change with each
placed pod. A mask is a column over `NodeColumns.nodes`: True if a node is open.
"""
