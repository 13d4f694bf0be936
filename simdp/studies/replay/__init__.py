"""Makes scenarios from traces of real steps, so that they can be changed."""
