"""The tests: each shows one promise on real servers and real processes."""
