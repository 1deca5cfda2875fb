"""Prometheus' text format 0.0.4, read strictly: whatever the format does not say is an error."""

import re

NAME = "[a-zA-Z_:][a-zA-Z0-9_:]*"
HELP = re.compile(rf"# HELP ({NAME}) ((?:[^\\\n]|\\\\|\\n)*)")
TYPE = re.compile(rf"# TYPE ({NAME}) (counter|gauge|histogram|summary|untyped)")
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\\\|\\"|\\n)*"'
NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|NaN|[+-]?Inf"
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? ({NUMBER})")
PAIR = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\.)*)"')
ESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}

Labels = frozenset[tuple[str, str]]


class Metrics:
    """What was read: the type of each family, and each sample."""

    def __init__(self, text: bytes) -> None:
        self.types: dict[str, str] = {}
        self.samples: dict[tuple[str, Labels], float] = {}
        helped: list[str] = []
        lines = text.decode("utf-8", "strict").split("\n")
        assert lines.pop() == "", "the last line ends, too"
        for line in lines:
            if found := HELP.fullmatch(line):
                assert found[1] not in helped, "one HELP a family"
                helped.append(found[1])
            elif found := TYPE.fullmatch(line):
                assert helped[-1] == found[1], "TYPE comes after its HELP"
                assert found[1] not in self.types, "one TYPE a family"
                self.types[found[1]] = found[2]
            else:
                found = SAMPLE.fullmatch(line)
                assert found, f"neither a comment nor a sample: {line!r}"
                family = found[1]
                if self.types.get(helped[-1]) == "histogram":
                    family = re.sub("_(bucket|sum|count)$", "", family)
                    assert family != found[1], "a histogram has buckets, a sum and a count"
                assert helped[-1] == family, "the samples of a family stand together"
                assert family in self.types, "TYPE comes before the samples"
                labels = labels_of(found[2] or "")
                assert (found[1], labels) not in self.samples, f"twice: {line!r}"
                self.samples[found[1], labels] = float(found[3])

    def value(self, name: str, **labels: str) -> float | None:
        """A sample, by the part of its name that differs; None when there is none."""
        return self.samples.get((f"mcp_aggregator_{name}", frozenset(labels.items())))

    def of(self, name: str, **labels: str) -> float | None:
        """A sample by its whole name; None when there is none."""
        return self.samples.get((name, frozenset(labels.items())))

    def labels(self, name: str) -> list[str]:
        """The values that the one label of a family has."""
        full = f"mcp_aggregator_{name}"
        return sorted(value for found, pairs in self.samples if found == full for _, value in pairs)


def labels_of(text: str) -> Labels:
    return frozenset((name, unescaped(value)) for name, value in PAIR.findall(text))


def unescaped(value: str) -> str:
    return re.sub(r"\\.", lambda found: ESCAPED[found[0]], value)
