"""Programs that measure real torch and write files for scenarios and `calibrate`.

Each one runs alone, ``python -m simdp.probes.ddp`` or under torchrun, and needs ``simdp[torch]``.
What computes is torch's; modules that import it (`networks`, `clock`, `group`, `device`,
`ddp_runs`, `collective_runs`, `layer_times`) are imported once torch is known to be there. All
else here is plain data.
"""
