//go:build tools

// Package e2e names Kubernetes' end-to-end tests, which `make e2e` builds, so that go.mod and go.sum hold all that they need.
package e2e

import (
	_ "k8s.io/kubernetes/test/e2e"
)
