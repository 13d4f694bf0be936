"""What several layers do with NumPy arrays: no parameters, no costs, no arguments of YAML."""
