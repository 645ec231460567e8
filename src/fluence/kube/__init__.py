"""The only room that talks to an API server.

Read in this order: ``access`` (who we are), ``client`` (one call), ``reflector`` and ``store`` (a cache that
survives what API servers do), ``lease`` (one leader), ``events`` (what users see), ``discovery`` and
``gangs`` (which API is there). Nothing here decides anything about scheduling.
"""
