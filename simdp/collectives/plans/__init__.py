"""Plans: what they are, how they are put together, and the proof that they do what they promise."""
