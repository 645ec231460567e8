"""The room of the matcher: a request and a graph in, a placement or a reason out.

Pure: it takes `now` as an argument, and reads and writes nothing but the graph and its ledger.
"""
