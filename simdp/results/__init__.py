"""Spans, metrics derived from them, and results that are saved and loaded."""
