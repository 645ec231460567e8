"""Revisions of the tables, one module each; alembic runs them (`fluence.store.database`)."""
