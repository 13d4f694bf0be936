"""Calibrate: measured times in, constants of a machine out, with how well they are known."""
