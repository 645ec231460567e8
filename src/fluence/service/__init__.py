"""The matcher as a gRPC service on port 4242: the services of the predecessors, and an API of our own.

    client ──► rpc ──► legacy | api ──► worker ──► graphs ──► engine
               bounds,  messages         one thread,  by name    the matcher, or the live cluster
               codes                     one fsync      │
                                                        └──► journal

The event loop (`rpc`, `legacy`, `api`, `server`) receives and answers; one thread (`worker`) does the work,
so that no call sees another one half done. The changes of a call are on disk before it is answered.
"""
