"""What a case measured, and what it may cost. Pure: figures in, verdicts out."""

from dataclasses import dataclass

OK, STRETCH, MISSED, SHOWN, FAILED = "ok", "stretch", "MISSED", "shown", "FAILED"


@dataclass(frozen=True)
class Figure:
    """One measured value. `floor` is what it is held against; `note` says how it was taken."""

    what: str
    ours: float
    unit: str
    floor: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        return self.ours / self.floor if self.floor and self.floor > 0 else None


@dataclass(frozen=True)
class Ratio:
    """At most `limit` times the floor; `stretch` is the aim beyond the budget."""

    limit: float
    stretch: float | None = None

    def verdict(self, figure: Figure) -> str:
        if figure.ratio is None or figure.ratio > self.limit:
            return MISSED
        return STRETCH if self.stretch and figure.ratio <= self.stretch else OK

    def text(self, unit: str) -> str:
        stretch = f" (stretch {self.stretch:g}×)" if self.stretch else ""
        return f"≤ {self.limit:g}×{stretch}"


@dataclass(frozen=True)
class AtMost:
    """At most `limit`, in the figure's own unit."""

    limit: float

    def verdict(self, figure: Figure) -> str:
        return OK if figure.ours <= self.limit else MISSED

    def text(self, unit: str) -> str:
        return f"≤ {self.limit:g} {unit}"


@dataclass(frozen=True)
class AtLeast:
    """At least `limit`, in the figure's own unit."""

    limit: float

    def verdict(self, figure: Figure) -> str:
        return OK if figure.ours >= self.limit else MISSED

    def text(self, unit: str) -> str:
        return f"≥ {self.limit:g} {unit}"


Limit = Ratio | AtMost | AtLeast


@dataclass(frozen=True)
class Row:
    """A judged figure; a case that broke off is a row without one."""

    case: str
    req: tuple[str, ...]
    verdict: str
    figure: Figure | None = None
    limit: Limit | None = None
    error: str = ""

    @property
    def passed(self) -> bool:
        return self.verdict not in (MISSED, FAILED)


def judge(
    name: str, req: tuple[str, ...], budget: dict[str, Limit], figures: list[Figure]
) -> list[Row]:
    """Every figure against its limit. A limit whose figure did not come is a failure too."""
    rows = [
        Row(name, req, limit.verdict(figure) if limit else SHOWN, figure, limit)
        for figure, limit in ((figure, budget.get(figure.what)) for figure in figures)
    ]
    measured = {figure.what for figure in figures}
    missing = [what for what in budget if what not in measured]
    return rows + [Row(name, req, FAILED, error=f"not measured: {what}") for what in missing]
