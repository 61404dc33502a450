"""The checks, by what they look at. Each takes a `Machine` and yields `Finding`s; none changes anything."""
