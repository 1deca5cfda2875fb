"""The demo server ``arithmetic``: formulas and summary statistics, as structured results.

Both tools declare an output schema, so it shows what a gateway must keep: ``outputSchema`` in the
list, ``structuredContent`` in the answer. It is not a computer algebra system.
"""

from __future__ import annotations

import sys

from mcp_junction.demo.wire import DemoServer, DemoTool, ToolError, show_usage, structured

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mcp_junction.demo.wire import DemoRequest, Json

_LARGEST = 1e150  # its square, which the deviation needs, is still a double


def evaluate(_: DemoRequest, arguments: Json) -> Json:
    from mcp_junction.demo.formula import FormulaError, compute  # late: the parser is a slow import

    expression: str = arguments["expression"]
    try:
        value = compute(expression)
    except FormulaError as error:
        raise ToolError(str(error)) from None
    return structured({"expression": expression, "value": value, "exact": str(value)})


def summarise(_: DemoRequest, arguments: Json) -> Json:
    import math
    import statistics  # late: a slow import that only this tool needs

    numbers: list[int | float] = arguments["numbers"]
    whole = all(isinstance(number, int) for number in numbers)
    return structured(
        {
            "count": len(numbers),
            "sum": sum(numbers) if whole else math.fsum(numbers),
            "mean": statistics.mean(numbers),
            "median": statistics.median(numbers),
            "minimum": min(numbers),
            "maximum": max(numbers),
            "standard_deviation": statistics.pstdev(numbers),
        }
    )


def _number(description: str) -> Json:
    return {"type": "number", "description": description}


_PURE: Json = {"readOnlyHint": True, "idempotentHint": True}

TOOLS = (
    DemoTool(
        "evaluate",
        "Evaluate an expression",
        "Compute an arithmetic expression, such as '6 * 7' or 'sqrt(2) ** 3 + pi'. It knows "
        "+ - * / // % ** and parentheses, abs, ceil, cos, exp, factorial, floor, log, log10, max, "
        "min, round, sin, sqrt, tan, e, pi and tau.",
        evaluate,
        properties={
            "expression": {
                "type": "string",
                "description": "The expression, in one line.",
                "minLength": 1,
                "maxLength": 300,
            }
        },
        required=("expression",),
        output={
            "expression": {"type": "string", "description": "The expression that was computed."},
            "value": _number("Its value."),
            "exact": {
                "type": "string",
                "description": "The value as text, for readers that shorten long numbers.",
            },
        },
        annotations=_PURE,
    ),
    DemoTool(
        "statistics",
        "Summary statistics",
        "Describe a list of numbers: count, sum, mean, median, extremes, standard deviation.",
        summarise,
        properties={
            "numbers": {
                "type": "array",
                "description": "The numbers, in any order.",
                "items": {"type": "number", "minimum": -_LARGEST, "maximum": _LARGEST},
                "minItems": 1,
                "maxItems": 10_000,
            }
        },
        required=("numbers",),
        output={
            "count": {"type": "integer", "description": "How many numbers there are."},
            "sum": _number("All of them, added."),
            "mean": _number("Their average."),
            "median": _number("The one in the middle."),
            "minimum": _number("The smallest."),
            "maximum": _number("The largest."),
            "standard_deviation": _number("How far they spread, taken as the whole population."),
        },
        annotations=_PURE,
    ),
)


def main(argv: list[str]) -> int:
    if argv:
        return show_usage("arithmetic", argv, "arithmetic")
    instructions = "Exact small computations: expressions, and statistics over a list of numbers."
    return DemoServer("junction-demo-arithmetic", "Demo arithmetic", instructions, TOOLS).serve()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
