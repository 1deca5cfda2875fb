"""The list of cases, filled by the `@case` decorator."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from budgets import Figure, Limit
from targets import Lab

Measure = Callable[[Lab], Awaitable[list[Figure]]]


@dataclass(frozen=True)
class Case:
    name: str
    budget: dict[str, Limit]
    req: tuple[str, ...]
    front: str
    measure: Measure
    seconds: int

    @property
    def summary(self) -> str:
        return (self.measure.__doc__ or "").strip().partition("\n")[0]


CASES: dict[str, Case] = {}


def case(
    name: str,
    *,
    budget: dict[str, Limit],
    req: tuple[str, ...] = (),
    front: str = "stdio",
    seconds: int = 300,
) -> Callable[[Measure], Measure]:
    """Register a case. `budget` maps what is measured (`Figure.what`) to its limit; `front` is
    what the programs are asked over: `stdio` or `http`; it may take so many `seconds`."""

    def register(measure: Measure) -> Measure:
        if name in CASES:
            raise ValueError(f"two cases are called {name}")
        CASES[name] = Case(name, budget, req, front, measure, seconds)
        return measure

    return register
