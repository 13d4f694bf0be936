"""How long compute takes on a cluster's devices."""
