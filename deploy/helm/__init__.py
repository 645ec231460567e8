"""The chart, and all that is written from it: its README and schema, the plain manifests, kind's config."""
