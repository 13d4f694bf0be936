"""The scenario: root of every YAML file, and checks between its parts.

`root` holds `Scenario`; `loading` reads and checks one, with `overrides` and the values of
`machines`. `checks` finds inconsistent parts; `measured` holds measured points; `placement` maps
ranks, neighbouring jobs and links to plain numbers.
"""

from simdp.scenario.loading import checked, load_scenario
from simdp.scenario.root import Scenario

__all__ = ["Scenario", "checked", "load_scenario"]
