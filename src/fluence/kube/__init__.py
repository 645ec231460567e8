"""The only room that talks to an API server.

Read in this order: ``access`` (the server and our identity), ``client`` (calls), ``reflector`` and ``store``
(a cache that survives the faults of API servers), ``lease`` (one leader), ``events`` (events for users),
``gangs`` and ``operators`` (the APIs that a server has). Nothing here decides anything about scheduling.
"""
