"""Revisions of the tables, one module each, forward and back; alembic runs them (`fluence.store.schema`)."""
