"""Which nodes are open to a pod: kube-scheduler's filters and scores, for all nodes at once, by plugin.

| kube-scheduler's plugin | module |
|---|---|
| NodeUnschedulable | `unschedulable`: cordoned nodes; nodes that are not ready |
| TaintToleration | `taints` |
| NodeAffinity | `node_affinity`: nodeSelector and node affinity |
| NodeResourcesFit | `resources`; the fit itself is `fluence.placer.node_table` |
| NodePorts | `ports` |
| InterPodAffinity | `interpod_affinity` |
| PodTopologySpread | `topology_spread` |
| VolumeBinding, VolumeZone, VolumeRestrictions | `volumes`, `volume_matching`, `volume_rules` |
| NodeVolumeLimits | `csi_limits` |

Two modules put them together. `node_rules`: what a pod asks of its node alone, one mask and one score for
each distinct rule. `gang_rules`: what the pods of a gang ask of other pods, which changes with each that is
placed. A mask is a column over `NodeColumns.nodes`: True where a node is open.
"""
