"""K-1: prints how good the offline classifier is, cross-validated by server; fails below the goal.

    python benchmarks/skills.py FOLDER

FOLDER is as for ``training/skills.py``, whose models it trains anew: each tool is judged by models
that saw nothing of its server. Takes a minute or two. The service's speed is the case ``classify``
of ``benchmarks/run.py`` (K-3).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from training.skills import Trainer, print_table, read_examples, table, validate

TOP_1, TOP_3, RIGHT, COVERAGE = 0.68, 0.85, 0.87, 0.50


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    rows = table(validate(Trainer(read_examples(Path(sys.argv[1])))))
    print_table(rows)
    _, by_tool, _ = rows[-1]
    goals = zip(
        ("top-1", "top-3", "primary right", "coverage"),
        (by_tool.top_1, by_tool.top_3, by_tool.right, by_tool.coverage),
        (TOP_1, TOP_3, RIGHT, COVERAGE),
        strict=True,
    )
    missed = [f"{name} {found:.3f} < {goal}" for name, found, goal in goals if found < goal]
    print(f"K-1: {'; '.join(missed) or 'met'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
