"""The checks, by what they look at. Each is one function: a Look in, verdicts out; at least one, ok or not."""
