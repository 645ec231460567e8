"""The matcher: a request and a graph in, a placement or a reason out, with the answers of Fluxion.

Pure: it takes `now` as an argument, and reads and writes nothing but the graph and its ledger.
"""
