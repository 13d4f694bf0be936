"""WHAT HAPPENED: spans, metrics that derive from them, and results that save and load."""
