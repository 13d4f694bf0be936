"""Programs that measure real torch and write files for scenarios and `calibrate`.

Each probe runs as ``python -m simdp.probes.ddp`` or under torchrun, and needs ``simdp[torch]``.
Modules that import torch (`networks`, `clock`, `group`, `device`, `ddp_runs`, `collective_runs`,
`layer_times`) are imported only after a check for it. The others hold plain data.
"""
