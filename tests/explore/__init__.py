"""`make explore`: the search for counterexamples, with fresh seeds until the time is over."""
