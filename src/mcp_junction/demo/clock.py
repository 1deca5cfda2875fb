"""The demo server ``clock``: what time it is, there and elsewhere, and a countdown.

The countdown is the one demo tool that takes its time: it reports progress and can be cancelled.
Zones come from the machine's database; UTC and fixed offsets work on a machine without one.
It is not a scheduler: nothing survives the program.
"""

from __future__ import annotations

import re
import sys
import time
from datetime import UTC, datetime, timedelta, timezone, tzinfo

from mcp_junction.demo.wire import DemoServer, DemoTool, ToolError, show_usage, structured, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mcp_junction.demo.wire import DemoRequest, Json

_OFFSET = re.compile(r"(?:UTC)?([+-])(\d\d?)(?::?([0-5]\d))?")
_ZONE = "A zone name such as 'Europe/Paris', an offset such as '+02:00', or 'UTC'."


def now(_: DemoRequest, arguments: Json) -> Json:
    zone = arguments.get("timezone", "UTC")
    return structured(_moment(datetime.now(_zone(zone)), zone))


def convert(_: DemoRequest, arguments: Json) -> Json:
    there, here = arguments["from"], arguments["to"]
    try:
        moment = _read_time(arguments["time"], _zone(there))
        converted = moment.astimezone(_zone(here))
    except OverflowError:
        raise ToolError("That is too near the end of the calendar: take another year.") from None
    return structured({"from": _moment(moment, there), "to": _moment(converted, here)})


def countdown(request: DemoRequest, arguments: Json) -> Json:
    seconds = int(arguments["seconds"])
    start = time.monotonic()
    for done in range(1, seconds + 1):
        if request.cancelled.wait(max(0.0, start + done - time.monotonic())):
            break  # the answer is dropped by the wire
        request.progress(done, seconds, f"{seconds - done} s to go")
    return text(f"Counted down {seconds} s.")


def _moment(moment: datetime, zone: str) -> Json:
    written = moment.isoformat(timespec="seconds")
    return {"time": written, "weekday": moment.strftime("%A"), "timezone": zone}


def _read_time(written: str, zone: tzinfo) -> datetime:
    today = datetime.now(zone).date().isoformat()
    time_only = re.match(r"\d\d?:", written)
    try:
        moment = datetime.fromisoformat(f"{today}T{written:0>5}" if time_only else written)
    except ValueError:
        reason = f"Cannot read the time {written!r}: write '14:30' or '2026-03-29T14:30'."
        raise ToolError(reason) from None
    if moment.tzinfo is not None:
        raise ToolError("The time has an offset of its own: leave it out, 'from' says the zone.")
    placed = moment.replace(tzinfo=zone)
    if placed.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != moment:
        raise ToolError(f"{written} does not exist there: the clocks go forward past it.")
    return placed


def _zone(name: str) -> tzinfo:
    if name.upper() in {"UTC", "Z"}:
        return UTC
    if offset := _OFFSET.fullmatch(name):
        sign, hours, minutes = offset.groups(default="0")
        distance = timedelta(hours=int(hours), minutes=int(minutes))
        if distance < timedelta(hours=24):
            return timezone(-distance if sign == "-" else distance)
    from zoneinfo import ZoneInfo  # late: it costs more than the rest of the start

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, not a zone's spelling, a folder of zones
        raise ToolError(f"Unknown time zone {name!r}. {_advice(name)}") from None


def _advice(name: str) -> str:
    from difflib import get_close_matches
    from zoneinfo import available_timezones

    zones = sorted(available_timezones())
    if not zones:
        return (
            "This machine has no time-zone database: use UTC or an offset such as '+02:00', "
            "or install the package tzdata."
        )
    wanted = name.strip().replace(" ", "_").lower()
    near = [zone for zone in zones if wanted and wanted in zone.lower()]
    near = near or get_close_matches(name, zones)
    return f"Did you mean {', '.join(near[:5])}?" if near else f"Use: {_ZONE}"


_MOMENT: Json = {
    "time": {"type": "string", "description": "The moment in ISO 8601, with its offset."},
    "weekday": {"type": "string", "description": "The day of the week there."},
    "timezone": {"type": "string", "description": "The zone, as it was asked for."},
}
_MOMENT_OBJECT: Json = {"type": "object", "properties": _MOMENT, "required": list(_MOMENT)}
_LOOK: Json = {"readOnlyHint": True}

TOOLS = (
    DemoTool(
        "now",
        "Current time",
        "Tell the current date and time in a time zone.",
        now,
        properties={"timezone": {"type": "string", "description": _ZONE, "default": "UTC"}},
        output=_MOMENT,
        annotations=_LOOK,
    ),
    DemoTool(
        "convert",
        "Convert a time",
        "Convert a time of day, or a date and time, from one time zone to another.",
        convert,
        properties={
            "time": {
                "type": "string",
                "description": "'14:30' for today, or '2026-03-29T14:30'; without an offset.",
            },
            "from": {"type": "string", "description": f"Where the time is from. {_ZONE}"},
            "to": {"type": "string", "description": f"Where it is to be told. {_ZONE}"},
        },
        required=("time", "from", "to"),
        output={"from": _MOMENT_OBJECT, "to": _MOMENT_OBJECT},
        annotations=_LOOK,
    ),
    DemoTool(
        "countdown",
        "Count down",
        "Wait some seconds, reporting progress every second; can be cancelled.",
        countdown,
        properties={
            "seconds": {
                "type": "integer",
                "description": "How long to wait, in whole seconds.",
                "minimum": 1,
                "maximum": 30,
            }
        },
        required=("seconds",),
        annotations=_LOOK,
        slow=True,
    ),
)


def main(argv: list[str]) -> int:
    if argv:
        return show_usage("clock", argv, "clock")
    instructions = "Times in any zone, conversions between zones, and a countdown."
    return DemoServer("junction-demo-clock", "Demo clock", instructions, TOOLS).serve()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
