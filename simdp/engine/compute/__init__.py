"""Compute times on a cluster's devices, by the kind of ``compute``."""
