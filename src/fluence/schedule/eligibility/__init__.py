"""Eligibility: whether a gang may be planned at all, apart from free capacity."""
