"""A server that does what the test tells it to, and tells what it was told. Standard library only.

The first argument is an object of options; all may be left out:

    tools        names to list, in this order; one that is no behaviour below answers like `echo`
    described    tool objects to list as they stand, as JSON texts
    page         how many tools a page of `tools/list` holds
    capabilities what to declare besides tools
    gate         a FIFO; `initialize` is answered when somebody has opened it for writing
    starts       a file that gets a line with the process id at every start
    noise        lines to print on stdout before every answer
    refuses      methods to answer with an error instead, and its words
    dies_on      a method to exit on instead of answering, with `last_words` and `code`
    last_words   what to print on stderr at the start (or see `dies_on`), and then exit
    code         with this status

Behaviours are tools: `{"name": "raw", "arguments": {...}}` runs `raw(call, **arguments)`.
"""

import json
import os
import sys

OPTIONS = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
OUT = sys.stdout.buffer

seen = []  # every line of the client's, as it came
held = []  # ids of calls that wait for `release`
asked = {}  # id of a question of ours -> id of the call that waits for its answer
state = {"count": 0, "initialize": ""}


def write(text):
    for noise in OPTIONS.get("noise", ()):
        OUT.write(noise.encode() + b"\n")
    OUT.write(text.encode() + b"\n")
    OUT.flush()


def notify(method, params):
    write(f'{{"jsonrpc":"2.0","method":"{method}","params":{params}}}')


def answer(frame_id, result):
    write(f'{{"jsonrpc":"2.0","id":{json.dumps(frame_id)},"result":{result}}}')


def say(frame_id, value):
    text = value if isinstance(value, str) else json.dumps(value)
    result = {"content": [{"type": "text", "text": text}]}
    answer(frame_id, json.dumps(result, ensure_ascii=False))


def ask(frame_id, method, params):
    asked[frame_id] = None
    question = json.dumps(frame_id)
    write(f'{{"jsonrpc":"2.0","id":{question},"method":"{method}","params":{params}}}')


def open_gate(path):
    """Wait until somebody opens the other end."""
    with open(path):
        pass


class Call:
    def __init__(self, frame):
        self.id = frame["id"]
        self.params = frame["params"]
        self.token = self.params.get("_meta", {}).get("progressToken")

    def progress(self, params):
        token = json.dumps(self.token)
        notify("notifications/progress", f'{{"progressToken":{token},{params}}}')


class Behaviours:
    """Each is a tool."""

    def echo(call, **_):
        """Say the line that asked."""
        say(call.id, seen[-1])

    def raw(call, result):
        """Answer with this text as the result."""
        answer(call.id, result)

    def refuse(call, error):
        """Answer with this text as the error."""
        write(f'{{"jsonrpc":"2.0","id":{json.dumps(call.id)},"error":{error}}}')

    def about(call):
        """Say what there is to know about this process."""
        known = {"pid": os.getpid(), "env": dict(os.environ), "argv": sys.argv, "cwd": os.getcwd()}
        say(call.id, {**known, "initialize": json.loads(state["initialize"])})

    def count(call):
        """Say how often this was called."""
        state["count"] += 1
        say(call.id, state["count"])

    def seen(call):
        """Say every line that came so far."""
        say(call.id, seen)

    def big(call, size):
        """A result of so many bytes."""
        say(call.id, "é0" * (size // 3))

    def hold(call, **_):
        """Do not answer until `release`."""
        held.append(call.id)
        call.progress('"progress":0')

    def release(call):
        """Answer what is held, the last one first."""
        while held:
            frame_id = held.pop()
            say(frame_id, f"released {frame_id}")
        say(call.id, "released all")

    def wait(call, gate):
        """Say that it has begun, then answer when the gate is opened."""
        call.progress('"progress":0')
        open_gate(gate)
        say(call.id, "the gate was opened")

    def progress(call, steps):
        """Report progress with each of these members, then answer."""
        for step in steps:
            call.progress(step)
        say(call.id, {"token": call.token})

    def log(call, messages):
        """Send each as a log message, then answer."""
        for message in messages:
            notify("notifications/message", message)
        say(call.id, "logged")

    def ask(call, method, params="{}", question="q"):
        """Ask the client, and answer with the line it answered."""
        ask(question, method, params)
        asked[question] = call.id

    def ask_after(call, method, params="{}", question="q"):
        """Answer, and then ask; see `seen` for the client's answer."""
        say(call.id, "asking")
        ask(question, method, params)

    def withdraw(call, question="q"):
        """Say that the answer to a question is no longer wanted."""
        withdrawn = json.dumps({"requestId": question, "reason": "changed my mind"})
        notify("notifications/cancelled", withdrawn)
        say(call.id, "withdrawn")

    def grow(call, name):
        """Offer one more tool, say that the list is another one, and answer."""
        tools.append(described(name))
        write('{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')
        say(call.id, "grown")

    def hang_up(call):
        """Close stdout, and live on."""
        os.close(1)

    def die(call, code=3, words=""):
        """Exit without an answer."""
        sys.stderr.write(words)
        sys.stderr.flush()
        os._exit(code)


def described(name):
    words = getattr(Behaviours, name, Behaviours.echo).__doc__
    return json.dumps({"name": name, "description": words, "inputSchema": {"type": "object"}})


def behaviours():
    return [name for name in vars(Behaviours) if not name.startswith("_")]


tools = [described(name) for name in OPTIONS.get("tools", behaviours())]
tools += OPTIONS.get("described", ())


def initialize(frame):
    if "gate" in OPTIONS:
        open_gate(OPTIONS["gate"])
    state["initialize"] = seen[-1]
    result = {
        "protocolVersion": frame["params"]["protocolVersion"],
        "capabilities": {"tools": {"listChanged": True}, **OPTIONS.get("capabilities", {})},
        "serverInfo": {"name": "scripted", "version": "1"},
    }
    answer(frame["id"], json.dumps(result))


def list_tools(frame):
    start = int(frame.get("params", {}).get("cursor", 0))
    end = start + OPTIONS.get("page", len(tools) or 1)
    more = f',"nextCursor":"{end}"' if end < len(tools) else ""
    answer(frame["id"], f'{{"tools":[{",".join(tools[start:end])}]{more}}}')


def call_tool(frame):
    call = Call(frame)
    behaviour = getattr(Behaviours, call.params["name"], Behaviours.echo)
    behaviour(call, **call.params.get("arguments", {}))


def received(frame):
    if "method" not in frame:
        waiting = asked.pop(frame["id"], None)
        if waiting is not None:
            say(waiting, seen[-1])
    elif frame["method"] == OPTIONS.get("dies_on"):
        die()
    elif frame["method"] in OPTIONS.get("refuses", ()):
        error = json.dumps({"code": -32603, "message": OPTIONS["refuses"][frame["method"]]})
        write(f'{{"jsonrpc":"2.0","id":{json.dumps(frame["id"])},"error":{error}}}')
    elif "id" in frame:
        handlers = {"initialize": initialize, "tools/list": list_tools, "tools/call": call_tool}
        handler = handlers.get(frame["method"])
        if handler is not None:
            handler(frame)
        else:
            answer(frame["id"], "{}")


def die():
    sys.stderr.write(OPTIONS.get("last_words", ""))
    sys.exit(OPTIONS.get("code", 1))


def main():
    if "starts" in OPTIONS:
        with open(OPTIONS["starts"], "a") as file:
            file.write(f"{os.getpid()}\n")
    if "last_words" in OPTIONS and "dies_on" not in OPTIONS:
        die()
    for line in sys.stdin.buffer:
        seen.append(line.decode().rstrip("\n"))
        received(json.loads(line))


main()
