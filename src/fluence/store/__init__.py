"""The history of jobs and the outbox, in SQL; the only room that knows SQL.

Nothing decides by it: it is written behind (`fluence.live.history_writer`), and a database that is slow, full
or gone costs history and no job. `urls` says where it is, `tables` what is in it, `history_store` writes,
`queries` reads, `retention` forgets.
"""
