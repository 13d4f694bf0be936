"""The version of simdp, on the ground floor, so that records can name it without the root."""

__version__ = "0.1.0"
