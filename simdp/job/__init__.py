"""Specs of a job: targets, checkpoints, and recovery after a failure."""
