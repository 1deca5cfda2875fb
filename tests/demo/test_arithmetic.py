"""The demo server ``arithmetic``, and the limits of its calculator."""

import json
import math

import pytest


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("6 * 7", 42),
        ("  2 + 3 * 4 ", 14),
        ("2 ** 3 ** 2", 512),
        ("-7 // 2", -4),
        ("-7 % 3", 2),
        ("7 / 2", 3.5),
        ("+(1 - 3)", -2),
        ("1_000 + 0x10", 1016),
        ("2 ** -2", 0.25),
        ("2 ** -5000", 0.0),
        ("(-1) ** 10 ** 200", 1),
        ("2 ** 1022", 2**1022),
        ("sqrt(2) ** 2", math.sqrt(2) ** 2),
        ("max(1, min(5, 3)) + abs(-2)", 5),
        ("floor(2.7) + ceil(2.1) + round(2.5)", 7),
        ("round(pi, 2)", 3.14),
        ("log(8, 2) + log10(100) + log(e)", 6.0),
        ("factorial(5)", 120),
        ("sin(0) + cos(0) + tan(0) + exp(0)", 2.0),
        ("tau / pi", 2.0),
    ],
)
def test_an_expression_has_a_value(arithmetic, expression, value):
    result = arithmetic.call("evaluate", expression=expression)
    assert result["structuredContent"] == {
        "expression": expression,
        "value": value,
        "exact": str(value),
    }
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]


@pytest.mark.parametrize(
    "expression",
    [
        "9 ** 9 ** 9",
        "2 ** 1023",
        "(2 ** 1000) * (2 ** 1000)",
        "10.0 ** 400",
        "1e999",
        "exp(1000)",
        "10 ** 300 / 1e-300",
        "(10 ** 300) ** (10 ** 300)",
    ],
)
def test_numbers_beyond_the_limit_are_refused_and_not_computed(arithmetic, expression):
    assert "too large" in arithmetic.complaint("evaluate", expression=expression)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("1 / 0", "Division by zero"),
        ("0 ** -1", "Division by zero"),
        ("(-8) ** 0.5", "not a real number"),
        ("sqrt(-1)", "Cannot compute"),
        ("sqrt(1, 2)", "Cannot compute"),
        ("max()", "Cannot compute"),
        ("factorial(171)", "0 to 170"),
        ("factorial(2.5)", "0 to 170"),
        ("round(5, -10 ** 9)", "300 digits"),
        ("2 +", "Cannot read"),
        ("2 3", "Cannot read"),
        ("(" * 250, "Cannot read"),
        ("x + 1", "no constant 'x'"),
        ("root(2)", "no function 'root'"),
        ("__import__('os')", "no function '__import__'"),
        ("().__class__", "not arithmetic"),
        ("'a' * 9", "not arithmetic"),
        ("True + 1", "not arithmetic"),
        ("1j", "not arithmetic"),
        ("1 << 9999999", "not arithmetic"),
        ("~1", "not arithmetic"),
        ("1 < 2", "not arithmetic"),
        ("[1 for _ in range(9)]", "not arithmetic"),
        ("max(*[1])", "not arithmetic"),
        ("round(1.5, ndigits=1)", "not arithmetic"),
        ("1\0", "Cannot"),
        ("\ud800", "Cannot"),
        ("1" * 301, "at most 300"),
        ("", "at least 1"),
    ],
)
def test_what_cannot_be_computed_is_explained(arithmetic, expression, words):
    assert words in arithmetic.complaint("evaluate", expression=expression)
    assert arithmetic.result("ping") == {}


@pytest.mark.parametrize("expression", ["-" * 299 + "1", "1" + "+1" * 149, "(" * 149 + "1"])
def test_depth_is_no_way_to_break_it(arithmetic, expression):
    assert arithmetic.call("evaluate", expression=expression)["content"]
    assert arithmetic.result("ping") == {}


def test_statistics_describe_a_list(arithmetic):
    told = arithmetic.call("statistics", numbers=[2, 4, 4, 4, 5, 5, 7, 9])
    assert told["structuredContent"] == {
        "count": 8,
        "sum": 40,
        "mean": 5,
        "median": 4.5,
        "minimum": 2,
        "maximum": 9,
        "standard_deviation": 2.0,
    }


def test_statistics_of_fractions_do_not_drift(arithmetic):
    told = arithmetic.call("statistics", numbers=[0.1] * 10)["structuredContent"]
    assert (told["sum"], told["mean"], told["standard_deviation"]) == (1.0, 0.1, 0.0)


@pytest.mark.parametrize("numbers", [[7], [1e150, -1e150], [10**149] * 3, list(range(10_000))])
def test_statistics_work_to_the_limits_of_what_they_take(arithmetic, numbers):
    told = arithmetic.call("statistics", numbers=numbers)["structuredContent"]
    assert told["count"] == len(numbers)
    assert math.isfinite(told["standard_deviation"])


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([], "the length of 'numbers' must be at least 1"),
        ([0] * 10_001, "the length of 'numbers' must be at most 10000"),
        ("1, 2", "'numbers' must be a list"),
        ([1, "2", None], "'numbers'[1] must be a number; 'numbers'[2] must be a number"),
        ([True], "'numbers'[0] must be a number"),
        ([10**151], "'numbers'[0] must be at most"),
        ([-(10**151)], "'numbers'[0] must be at least"),
    ],
)
def test_what_is_not_a_list_of_numbers_is_explained(arithmetic, numbers, words):
    assert words in arithmetic.complaint("statistics", numbers=numbers)


def test_a_thousand_wrong_numbers_are_a_short_complaint(arithmetic):
    assert len(arithmetic.complaint("statistics", numbers=["x"] * 1000)) < 500


def test_both_tools_declare_what_they_give(arithmetic):
    for tool in arithmetic.result("tools/list")["tools"]:
        schema = tool["outputSchema"]
        assert schema["type"] == "object"
        assert schema["required"] == list(schema["properties"])
