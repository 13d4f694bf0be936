"""The scenario: root of every YAML file, and checks between its parts.

`root` holds `Scenario`, `loading` reads and checks one, with `overrides` set in it and what
`machines` bring; `feasibility` knows what cannot be right between its parts, and `doubts` which
checks to pass over where something is wrong; `measured` is what a real machine did at points of it.
`placement`, `neighbours` and `wiring` say where ranks and jobs live, who else is on the network,
and what that network is in plain numbers.
"""

from simdp.scenario.loading import checked, load_scenario
from simdp.scenario.root import Scenario

__all__ = ["Scenario", "checked", "load_scenario"]
