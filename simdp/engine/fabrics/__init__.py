"""Two clocks for one plan: every transfer an event, or whole rounds as arrays."""
