//go:build tools

// Package kwok names the program that `fluence sandbox` builds, so that go.mod and go.sum hold all that it needs.
package kwok

import _ "sigs.k8s.io/kwok/cmd/kwok"
