"""Which pods start together: groups, their members, sizes and rules."""
