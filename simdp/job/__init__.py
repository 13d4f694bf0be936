"""HOW LONG IT LASTS: what a job is to reach, and how it goes on after a failure."""
