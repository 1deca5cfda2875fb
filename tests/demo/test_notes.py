"""The demo server ``notes``."""

import tempfile
from pathlib import Path

import pytest

CHANGED = {"jsonrpc": "2.0", "method": "notifications/resources/list_changed"}


@pytest.fixture
def notes(start, tmp_path):
    return start("notes", str(tmp_path))


def names(peer):
    return [note["name"] for note in peer.call("list")["structuredContent"]["notes"]]


def add_params(name, text=""):
    return {"name": "add", "arguments": {"name": name, "text": text}}


def test_a_note_is_added_listed_read_and_deleted(notes, tmp_path):
    text = "Milk\r\nEggs\nжито 🌾"
    assert notes.told("add", name="shopping", text=text) == "Added shopping."
    assert (tmp_path / "shopping.txt").read_bytes().decode() == text
    assert names(notes) == ["shopping"]
    assert notes.told("read", name="shopping") == text
    assert notes.told("delete", name="shopping") == "Deleted shopping."
    assert names(notes) == []


def test_only_delete_is_marked_destructive(notes):
    hints = {tool["name"]: tool["annotations"] for tool in notes.result("tools/list")["tools"]}
    assert [name for name in hints if hints[name].get("destructiveHint")] == ["delete"]
    assert [name for name in hints if not hints[name]["readOnlyHint"]] == ["add", "delete"]


def test_notes_are_searched_by_name_and_line_in_any_case(notes):
    notes.call("add", name="a-recipe", text="Boil the Water\nadd salt")
    notes.call("add", name="watering", text="Tuesdays")
    assert notes.call("search", text="WATER")["structuredContent"] == {
        "matches": [
            {"name": "a-recipe", "line": "Boil the Water"},
            {"name": "watering", "line": "watering"},
        ],
        "total": 2,
    }


def test_a_search_shows_the_first_matches_and_counts_them_all(notes):
    notes.call("add", name="log", text="tick\n" * 60)
    found = notes.call("search", text="tick")["structuredContent"]
    assert (len(found["matches"]), found["total"]) == (50, 60)


def test_an_existing_note_is_never_overwritten(notes):
    notes.call("add", name="plan", text="first")
    assert "already" in notes.complaint("add", name="plan", text="second")
    assert notes.told("read", name="plan") == "first"


@pytest.mark.parametrize("tool", ["read", "delete"])
def test_a_note_that_is_not_there_is_answered_with_those_that_are(notes, tool):
    assert "no notes yet" in notes.complaint(tool, name="plan")
    notes.call("add", name="plans", text="")
    assert "There are: plans." in notes.complaint(tool, name="plan")


@pytest.mark.parametrize(
    "name",
    ["../secret", "/etc/passwd", "..", ".hidden", "a/b", "a\\b", "a\0", "a\n", "", "é", "x" * 65],
)
def test_a_name_that_could_lead_elsewhere_is_refused(start, tmp_path, name):
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "notes").mkdir()
    notes = start("notes", str(tmp_path / "notes"))
    for tool, more in (("add", {"text": ""}), ("read", {}), ("delete", {})):
        assert "cannot be a note's name" in notes.complaint(tool, name=name, **more)
    error = notes.error("resources/read", {"uri": f"note:///{name}"})
    assert error["code"] == -32002
    assert [path.name for path in tmp_path.rglob("*.txt")] == ["secret.txt"]


def test_a_refused_name_comes_with_a_proposal(notes):
    assert "How about 'My-shopping-list'?" in notes.complaint(
        "add", name="My shopping list!", text=""
    )


def test_a_link_in_the_folder_is_not_a_note(start, tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "subfolder.txt").mkdir()
    (folder / "other.md").write_text("not ours")
    notes = start("notes", str(folder))
    assert names(notes) == []
    assert "no note" in notes.complaint("read", name="link")
    assert "already" in notes.complaint("add", name="link", text="overwritten")
    assert (tmp_path / "secret.txt").read_text() == "secret"


def test_half_a_character_is_refused_and_leaves_nothing(notes, tmp_path):
    assert "surrogate" in notes.complaint("add", name="broken", text="\ud83c")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_went_away_is_told_as_a_failure_of_the_tool(start, tmp_path):
    folder = tmp_path / "notes"
    notes = start("notes", str(folder))
    assert names(notes) == []
    folder.rmdir()
    assert "The system refused: No such file" in notes.complaint("list")


def test_every_note_is_a_resource(notes):
    notes.call("add", name="plan", text="Sow, then wait.")
    assert notes.result("resources/list") == {
        "resources": [
            {
                "uri": "note:///plan",
                "name": "plan",
                "title": "Note plan",
                "mimeType": "text/plain",
                "size": 15,
            }
        ]
    }
    assert notes.result("resources/read", {"uri": "note:///plan"}) == {
        "contents": [{"uri": "note:///plan", "mimeType": "text/plain", "text": "Sow, then wait."}]
    }
    templates = notes.result("resources/templates/list")["resourceTemplates"]
    assert [template["uriTemplate"] for template in templates] == ["note:///{name}"]


@pytest.mark.parametrize("uri", ["note:///absent", "plan", "file:///plan", "note:///plan.txt"])
def test_what_is_not_a_note_is_a_resource_not_found(notes, uri):
    notes.call("add", name="plan", text="")
    error = notes.error("resources/read", {"uri": uri})
    assert (error["code"], error["data"]) == (-32002, {"uri": uri})


def test_adding_and_deleting_tell_that_the_resources_changed(notes):
    assert notes.receive_until(notes.ask("tools/call", add_params("plan")))[:-1] == [CHANGED]
    refused = notes.receive_until(notes.ask("tools/call", add_params("plan")))
    assert len(refused) == 1
    params = {"name": "delete", "arguments": {"name": "plan"}}
    assert notes.receive_until(notes.ask("tools/call", params))[:-1] == [CHANGED]
    version = {"protocolVersion": "2025-11-25"}
    assert notes.result("initialize", version)["capabilities"]["resources"] == {"listChanged": True}


def test_a_prompt_carries_the_note_it_is_about(notes):
    notes.call("add", name="plan", text="Sow, then wait.")
    (prompt,) = notes.result("prompts/list")["prompts"]
    assert prompt["name"] == "summarise"
    params = {"name": "summarise", "arguments": {"name": "plan"}}
    asked, carried = notes.result("prompts/get", params)["messages"]
    assert "plan" in asked["content"]["text"]
    assert carried["content"]["resource"]["text"] == "Sow, then wait."


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"name": "unknown"},
        {"name": "summarise"},
        {"name": "summarise", "arguments": []},
        {"name": "summarise", "arguments": {"name": "absent"}},
        {"name": "summarise", "arguments": {"name": ["plan"]}},
    ],
)
def test_a_prompt_that_cannot_be_made_is_invalid_params(notes, params):
    assert notes.error("prompts/get", params)["code"] == -32602


@pytest.mark.parametrize("method", ["resources/list", "resources/templates/list", "prompts/list"])
def test_a_cursor_it_never_gave_is_invalid_params(notes, method):
    assert notes.error(method, {"cursor": "2"})["code"] == -32602


def test_notes_in_a_folder_outlive_the_server(start, tmp_path):
    folder = str(tmp_path / "made" / "when needed")
    first = start("notes", folder)
    first.call("add", name="plan", text="Sow.")
    first.end()
    assert start("notes", folder).told("read", name="plan") == "Sow."


@pytest.mark.parametrize("args", [[], [""]], ids=["no argument", "a variable that is not set"])
@pytest.mark.parametrize("ending", ["end of input", "SIGTERM"])
def test_without_a_folder_notes_go_with_the_server(start, monkeypatch, tmp_path, args, ending):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    notes = start("notes", *args)
    notes.call("add", name="plan", text="Sow.")
    assert [path.name for path in tmp_path.glob("junction-notes-*/*")] == ["plan.txt"]
    if ending == "SIGTERM":
        notes.process.terminate()
        notes.process.wait(20)
    notes.end()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_used_is_named_at_the_start(start, tmp_path):
    occupied = tmp_path / "occupied"
    occupied.write_text("a file")
    status, said = start("notes", str(occupied)).end()
    assert status == 1
    assert str(occupied) in said
    assert Path(occupied).read_text() == "a file"
