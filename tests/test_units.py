"""Quantities: text to SI floats and back, and every way in which a quantity can be wrong."""

import subprocess
import sys

import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st

from simdp import units
from simdp.errors import SimdpError, UnitError
from simdp.units import DIMENSIONS, format_quantity, parse

pytestmark = pytest.mark.slow

every_dimension = for_each("dimension", DIMENSIONS)


@for_each(
    ("text", "dimension", "value"),
    [
        ("5 us", "time", 5e-6),
        ("5 µs", "time", 5e-6),  # micro sign
        ("5 μs", "time", 5e-6),  # Greek mu
        ("252.5 ms", "time", 0.2525),
        ("3 ns", "time", 3e-9),
        ("1.5 min", "time", 90.0),
        ("2 h", "time", 7200.0),
        ("0 s", "time", 0.0),
        ("-1 s", "time", -1.0),
        ("25 MiB", "data size", 25 * 2**20),
        ("1 KiB", "data size", 1024),
        ("1 kB", "data size", 1000),
        ("80 GB", "data size", 80e9),
        ("8 bit", "data size", 1.0),
        ("1e3 B", "data size", 1000.0),
        (".5 MiB", "data size", 2**19),
        ("25 GB/s", "bandwidth", 25e9),
        ("200 Gb/s", "bandwidth", 25e9),
        ("200 Gbit/s", "bandwidth", 25e9),
        ("25 GB / s", "bandwidth", 25e9),
        ("25GB/s", "bandwidth", 25e9),
        ("  25   GB/s ", "bandwidth", 25e9),
        ("1 KiB/ms", "bandwidth", 1_024_000),
        ("19.5 TFLOP/s", "compute rate", 19.5e12),
        ("1 PFLOP/s", "compute rate", 1e15),
        ("3 days", "time", 3 * 86400.0),
        ("1 week", "time", 7 * 86400.0),
        ("700 W", "power", 700.0),
        ("1.4 kW", "power", 1400.0),
        ("3.6 USD/h", "price", 0.001),
    ],
)
def test_a_quantity_is_read_as_an_si_float(text, dimension, value):
    assert parse(text, dimension) == value


@every_dimension
def test_the_example_of_every_message_can_be_read(dimension):
    assert parse(DIMENSIONS[dimension].example, dimension) > 0


@every_dimension
def test_every_unit_that_is_printed_can_be_read(dimension):
    for unit, scale in DIMENSIONS[dimension].printed.items():
        assert parse(f"1 {unit}", dimension) == scale


@every_dimension
@given(value=st.floats(-1e290, 1e290))
def test_what_is_written_reads_back_to_the_same_float(dimension, value):
    assert parse(format_quantity(value, dimension), dimension) == value


@for_each(
    ("value", "dimension", "written"),
    [
        (300e9, "bandwidth", "300 GB/s"),
        (0.5e9, "bandwidth", "500 MB/s"),
        (2.0**19, "data size", "512 KiB"),
        (25 * 2.0**20, "data size", "25 MiB"),
        (80e9, "data size", "80 GB"),
        (0.0, "data size", "0 B"),
        (5e-6, "time", "5 us"),
    ],
)
def test_the_shortest_text_is_written_that_begins_with_no_zero(value, dimension, written):
    assert format_quantity(value, dimension) == written


@every_dimension
@for_each("value", [1.7e308, -1.7e308, 5e-324])
def test_the_largest_and_smallest_floats_can_be_written(dimension, value):
    assert parse(format_quantity(value, dimension), dimension) == value


@every_dimension
@given(number=st.integers(0, 10**6), data=st.data())
def test_whole_numbers_of_a_printed_unit_stay_short(dimension, number, data):
    unit = data.draw(st.sampled_from(sorted(DIMENSIONS[dimension].printed)))
    value = parse(f"{number} {unit}", dimension)
    written = format_quantity(value, dimension)
    assert parse(written, dimension) == value
    assert len(written) <= len(f"{number} {unit}") or float(written.split()[0]) == number


@for_each(
    ("text", "dimension"),
    [("25 GB/s", "bandwidth"), ("5 us", "time"), ("25 MiB", "data size"), ("0 s", "time")],
)
def test_a_quantity_is_written_as_people_write_it(text, dimension):
    assert format_quantity(parse(text, dimension), dimension) == text


@for_each(
    ("text", "dimension", "message"),
    [
        (25, "bandwidth", '25 has no unit; write for example "25 GB/s".'),
        (2.5, "time", '2.5 has no unit; write "2.5 s", "2.5 ms" or "2.5 us".'),
        ("25", "data size", '25 has no unit; write for example "25 MiB".'),
        (True, "time", 'True is not a time; write for example "5 us".'),
        (None, "time", 'None is not a time; write for example "5 us".'),
        ([1], "data size", '[1] is not a data size; write for example "25 MiB".'),
        ("fast", "bandwidth", "'fast' is not a number with a unit; write for example \"25 GB/s\"."),
        ("", "time", "'' is not a number with a unit; write for example \"5 us\"."),
        ("nan s", "time", "'nan s' is not a number with a unit; write for example \"5 us\"."),
        ("5 x", "time", "'5 x' has an unknown unit 'x'; write for example \"5 us\"."),
        (
            "100Gbps",
            "bandwidth",
            "'100Gbps' has an unknown unit 'Gbps'; write \"100 Gbit/s\".",
        ),
        ("25 GBps", "bandwidth", "'25 GBps' has an unknown unit 'GBps'; write \"25 GB/s\"."),
        ("5 k", "time", "'5 k' has an unknown unit 'k'; write for example \"5 us\"."),
        (
            "5 B/s/s",
            "bandwidth",
            "'5 B/s/s' has an unknown unit 'B/s/s'; write for example \"25 GB/s\".",
        ),
        (
            "5 __import__('os')",
            "time",
            "\"5 __import__('os')\" has an unknown unit \"__import__('os')\"; "
            'write for example "5 us".',
        ),
        ("5 us", "bandwidth", "'5 us' is not a bandwidth; write for example \"25 GB/s\"."),
        ("5 GB", "bandwidth", "'5 GB' is not a bandwidth; write for example \"25 GB/s\"."),
        ("5 TFLOP", "compute rate", None),
        ("5 TB/s", "compute rate", None),
        ("1 sample", "data size", None),
    ],
)
def test_a_wrong_quantity_says_what_to_write(text, dimension, message):
    with pytest.raises(UnitError) as caught:
        parse(text, dimension)
    example = DIMENSIONS[dimension].example
    expected = message or f'{text!r} is not a {dimension}; write for example "{example}".'
    assert str(caught.value) == expected


def test_a_unit_error_is_a_value_error_and_wrong_input():
    assert issubclass(UnitError, ValueError)
    assert issubclass(UnitError, SimdpError)
    assert UnitError.exit_status == 2


@given(text=st.text(max_size=20))
def test_any_text_is_a_quantity_or_a_unit_error(text):
    try:
        assert isinstance(parse(text, "time"), float)
    except UnitError as error:
        assert 'write for example "5 us"' in str(error)


@pytest.mark.parametrize(("unit", "si_unit"), units.COMMON)
def test_common_units_are_what_pint_says(unit, si_unit, monkeypatch):
    factor = units.COMMON[unit, si_unit]
    monkeypatch.setattr(units, "COMMON", {})
    assert units._scale.__wrapped__(unit, si_unit) == pytest.approx(factor, rel=1e-15)


def test_common_units_need_no_pint():
    code = "import sys; from simdp.cluster.hardware import LINKS, Link; " + (
        "[Link.model_validate(LINKS.figures(name)) for name in LINKS.names()]; "
        "assert 'pint' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@for_each(("text", "share"), [("2 %", 0.02), ("10%", 0.1), ("0 %", 0.0)])
def test_a_share_is_read_with_its_sign(text, share):
    assert units.parse_percent(text) == share


@for_each("text", ["2", 2, 0.02, "-1 %", "1e999 %", "two %", None, True])
def test_what_is_no_share_is_refused(text):
    with pytest.raises(UnitError, match=r"is not a share of 0 % or more; write for example"):
        units.parse_percent(text)


@given(value=st.floats(0, 1e290))
def test_a_share_that_is_written_reads_back_to_nearly_the_same(value):
    assert units.parse_percent(units.format_percent(value)) == pytest.approx(value, rel=1e-15)


def test_a_share_is_written_short():
    assert [units.format_percent(share) for share in (0.02, 0.013, 0.0)] == ["2 %", "1.3 %", "0 %"]
