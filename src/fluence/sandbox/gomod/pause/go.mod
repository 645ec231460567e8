// The first process of a real node and of each of its pods: see main.go.
module fluence.invalid/pause

go 1.26.0
