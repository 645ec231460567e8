"""Commands that `fluence` and `kubectl fluence` share, and what every command prints and runs with."""
