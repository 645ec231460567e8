"""Doctor: what is right and what is wrong with Fluence in a cluster, and the command that cures it.

`look` reads a cluster into `facts`, as far as the rights of whoever asks go. `diagnose` is pure: facts in,
findings out. What could not be seen is a finding of its own and never taken for absent.
"""
