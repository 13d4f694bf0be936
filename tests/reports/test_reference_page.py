"""Pages of the reference: types, units, defaults and links, from a schema's definitions."""

from simdp.reports.reference_page import Named, pages

DEFINITIONS = {
    "Scenario": {
        "description": "One run; see `Part`.",
        "properties": {
            "part": {"$ref": "#/definitions/Part", "description": "What there is."},
            "shape": {"$ref": "#/definitions/shape", "default": "circle", "description": "A | B."},
        },
        "required": ["part"],
    },
    "Part": {
        "description": "A part.",
        "properties": {
            "count": {
                "type": "integer",
                "minimum": 1,
                "maximum": 2**20,
                "description": "How many.",
            },
            "wait": {
                "anyOf": [{"$ref": "#/definitions/time"}, {"type": "null"}],
                "default": None,
                "description": "None: not at all.",
            },
            "noise": {
                "title": "share",
                "type": "string",
                "default": "2 %",
                "description": "Of it.",
            },
            "sizes": {"type": "array", "items": {"type": "number"}, "description": "Of all."},
        },
        "required": ["count"],
    },
    "shape": {"anyOf": [{"const": "circle"}, {"$ref": "#/definitions/Circle"}]},
    "Circle": {
        "description": "Round.",
        "properties": {
            "kind": {"anyOf": [{"const": "circle"}, {"const": "disc"}]},
            "radius": {"type": "number", "exclusiveMinimum": 0, "description": "Its half."},
        },
    },
    "time": {"type": "string"},
}
NAMED = Named(
    families={"shapes": {"circle": "Circle"}},
    listed={"shapes": {"circle": "Round."}, "devices": {"a100": "Fast."}},
    pages={"shape": "shapes"},
    quantities={"time": ("time", "s, ms")},
)
PAGES = pages(DEFINITIONS, NAMED, "1.0")


def test_there_is_a_page_for_the_scenario_for_each_key_with_keys_and_for_each_family():
    assert sorted(PAGES) == ["devices.md", "part.md", "scenario.md", "shapes.md"]


def test_a_key_has_its_type_unit_default_and_meaning():
    assert (
        "| `count` | whole number, ≥ 1, ≤ 2^20 |  | **required** | How many. |" in PAGES["part.md"]
    )
    assert "| `wait` | time | s, ms |  | None: not at all. |" in PAGES["part.md"]
    assert "| `noise` | share | % | `2 %` | Of it. |" in PAGES["part.md"]
    assert "| `sizes` | list of number |  |  | Of all. |" in PAGES["part.md"]


def test_keys_lead_to_what_they_hold():
    page = PAGES["scenario.md"]
    assert "| `part` | [mapping](part.md#part) |  | **required** | What there is. |" in page
    assert "| `shape` | [shape](shapes.md) |  | `circle` | A \\| B. |" in page
    assert "One run; see [`Part`](part.md#part)." in page


def test_a_family_lists_its_kinds_and_tells_of_each():
    page = PAGES["shapes.md"]
    assert "| [`circle`](#circle) | Round. |" in page
    assert "## `circle`\n\nRound.\n\nAlso called `disc`.\n" in page
    assert "| `radius` | number, > 0 |  |  | Its half. |" in page


def test_the_catalogue_is_listed_by_name():
    assert "| `a100` | Fast. |" in PAGES["devices.md"]
