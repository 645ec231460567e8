"""Doctor: checks an installation of Fluence, and names the command that fixes each problem.

`look` reads a cluster into `facts`, within the rights of the user. `diagnose` is pure: facts in, findings
out. What could not be read is a finding of its own and is never taken for absent.
"""
