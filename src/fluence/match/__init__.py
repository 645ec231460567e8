"""The matcher: a request and a graph in, a placement or a reason out, with the results of Fluxion.

Pure: `now` is an argument, and only the graph and its ledger are read and written.
"""
