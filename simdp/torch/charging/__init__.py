"""CHARGING: what each operator of a torch script costs the device that it would run on."""
