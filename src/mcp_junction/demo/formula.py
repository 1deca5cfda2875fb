"""A calculator for one-line formulas that always ends soon.

A formula is parsed to a syntax tree and walked; only numbers, operators, a few functions and
constants are known, so nothing else can be reached. Three limits bound the work: the length of
the formula, the size of every number on the way (below 2^1023, so that it also fits a double),
and the arguments of the functions that grow fast. It is not a Python evaluator.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

MAX_LENGTH = 300
MAX_BITS = 1023
MAX_FACTORIAL = 170
MAX_ROUND_DIGITS = 300

Number = int | float


class FormulaError(Exception):
    """The formula cannot be computed; the message tells the author why."""


def compute(formula: str) -> Number:
    """The value of a formula such as ``2 * (3 + 4) ** 2`` or ``sqrt(2) * pi``."""
    if len(formula) > MAX_LENGTH:
        raise FormulaError(f"The expression is longer than {MAX_LENGTH} characters: split it.")
    try:
        return _value(ast.parse(formula.strip(), mode="eval").body)
    except (SyntaxError, MemoryError, RecursionError):
        reason = f"Cannot read {formula!r}: write it like 2 * (3 + 4) or sqrt(2) ** 3."
        raise FormulaError(reason) from None
    except ZeroDivisionError:
        raise FormulaError("Division by zero.") from None
    except OverflowError:
        raise FormulaError(_TOO_LARGE) from None
    except (ValueError, TypeError) as error:
        raise FormulaError(f"Cannot compute that: {error}.") from None


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _checked(value)
        case ast.Name(id=name):
            return float(_known(_CONSTANTS, name, "constant"))
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=operand):
            value = _value(operand)
            return -value if isinstance(sign, ast.USub) else value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _checked(_OPERATORS[type(op)](_value(left), _value(right)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            function = _known(_FUNCTIONS, name, "function")
            return _checked(function(*map(_value, args)))
    raise FormulaError(
        f"{ast.unparse(node)!r} is not arithmetic: use numbers, + - * / // % **, parentheses, "
        f"{', '.join(_FUNCTIONS)}, {', '.join(_CONSTANTS)}."
    )


def _known(table: Mapping[str, Any], name: str, what: str) -> Any:
    if name in table:
        return table[name]
    raise FormulaError(f"There is no {what} {name!r}; known are {', '.join(table)}.")


def _checked(value: int | float | complex) -> Number:
    if isinstance(value, complex):
        raise FormulaError("The result is not a real number.")
    if value.bit_length() > MAX_BITS if isinstance(value, int) else not math.isfinite(value):
        raise FormulaError(_TOO_LARGE)
    return value


def _power(base: Number, exponent: Number) -> Any:
    # b^e has more than (bits of b - 1) * e bits: refuse before computing, not after.
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and (int(base).bit_length() - 1) * exponent > MAX_BITS:
        raise FormulaError(_TOO_LARGE)
    return base**exponent


def _factorial(number: Number) -> int:
    if not isinstance(number, int) or not 0 <= number <= MAX_FACTORIAL:
        raise FormulaError(f"factorial takes whole numbers from 0 to {MAX_FACTORIAL}.")
    return math.factorial(number)


def _round(number: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > MAX_ROUND_DIGITS:
        raise FormulaError(f"round takes at most {MAX_ROUND_DIGITS} digits, as a whole number.")
    return round(number, digits) if digits else round(number)


_TOO_LARGE = "The numbers get too large: stay below about 10^307."

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "ceil": math.ceil,
    "cos": math.cos,
    "exp": math.exp,
    "factorial": _factorial,
    "floor": math.floor,
    "log": math.log,
    "log10": math.log10,
    "max": lambda *numbers: max(numbers),
    "min": lambda *numbers: min(numbers),
    "round": _round,
    "sin": math.sin,
    "sqrt": math.sqrt,
    "tan": math.tan,
}
_CONSTANTS: dict[str, float] = {"e": math.e, "pi": math.pi, "tau": math.tau}
