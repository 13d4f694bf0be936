"""Studies: commands and functions that simulate a scenario more than once."""
