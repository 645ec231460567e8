"""The view API: the state and the plan of the scheduler, read-only, over HTTP, for people and programs.

    core's loop                      thread "view"
    ───────────                      ─────────────
    Scheduler ──► snapshot.take ──►  Snapshot ──► rows: what a user may see ──► server ──► JSON, events
                  between cycles                    ▲
                                     access: the user, and in which namespaces they may list pods

`snapshot` copies columns and shares everything that does not change, so that it delays a cycle by less than a
millisecond. `rows` makes resources from it on another thread. `access` authenticates like an aggregated API
server (by the front proxy's certificate or a token) and asks the API server what the user may see.
"""
