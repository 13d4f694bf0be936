"""RECORDING: torch modules as simdp workloads, on tensors without memory; nothing is computed."""
