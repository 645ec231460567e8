//go:build tools

// Package helm names the program with which the tests install the chart, so that go.mod and go.sum hold all that it needs.
package helm

import _ "helm.sh/helm/v3/cmd/helm"
