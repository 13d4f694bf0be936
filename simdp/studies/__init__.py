"""MANY RUNS: studies that play a scenario more than once."""
