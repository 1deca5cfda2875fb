"""Families become text that a strict reader reads back, whatever the values of labels are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.telemetry.grammar import Metrics

from mcp_junction.telemetry.exposition import MetricFamily, MetricKind, format_families

BROKEN = [
    'a"} 1\nevil 2',
    "\\",
    '\\"',
    "\\n",
    "\n",
    "\r\n",
    "\0",
    "",
    "{}",
    "名前",
    "\u2028",
    " # ",
]


def test_the_text_is_exactly_this():
    families = [
        MetricFamily("a_total", "How often.", {"": 3}, kind=MetricKind.COUNTER),
        MetricFamily("b", "How much.", {"x": 0.25, 'y"\n\\': 1}, "of"),
        MetricFamily("c", "Nothing yet.", {}, "of"),
    ]
    assert format_families(families).decode() == (
        "# HELP a_total How often.\n# TYPE a_total counter\na_total 3\n"
        '# HELP b How much.\n# TYPE b gauge\nb{of="x"} 0.25\nb{of="y\\"\\n\\\\"} 1\n'
        "# HELP c Nothing yet.\n# TYPE c gauge\n"
    )


@pytest.mark.parametrize("text", ["a 1", "a 1\n", "# TYPE a gauge\na 1\n", "# HELP a b\na 1\n"])
def test_the_reader_of_these_tests_does_not_read_everything(text):
    with pytest.raises((AssertionError, IndexError)):
        Metrics(text.encode())


@given(st.dictionaries(st.text() | st.sampled_from(BROKEN), st.floats(0, 1e9) | st.integers(0)))
def test_any_value_of_a_label_comes_back_as_it_was(samples):
    read = Metrics(format_families([MetricFamily("mcp_aggregator_x", "Words.", samples, "server")]))
    assert len(read.samples) == len(samples)
    for name, number in samples.items():
        assert read.value("x", server=name) == float(number)


def test_half_a_surrogate_pair_is_told_apart_and_breaks_nothing():
    read = Metrics(
        format_families([MetricFamily("mcp_aggregator_x", "W.", {"a\ud800": 1, "a": 2}, "server")])
    )
    assert read.labels("x") == ["a", "a\\ud800"]
