//go:build tools

// Package operators names the controllers that tests of operators run, so that go.mod and go.sum hold all that they need.
package operators

import (
	_ "github.com/ray-project/kuberay/ray-operator"
	_ "sigs.k8s.io/jobset"
	_ "sigs.k8s.io/lws/cmd"
)
