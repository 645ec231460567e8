"""The revisions, in their order. A revision that was released is never changed."""
