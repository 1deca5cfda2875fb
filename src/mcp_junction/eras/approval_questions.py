"""ApprovalQuestions: sends clients to the page on which a person approves their call.

The link alone lets nobody decide: the page wants the key of somebody who may. How clients are
asked: ``url_questions.py``.
"""

from __future__ import annotations

from mcp_junction.calls.call import Call
from mcp_junction.eras.resume import APPROVAL
from mcp_junction.eras.url_questions import PageQuestion, UrlQuestions, read_error
from mcp_junction.governance.approvals import Approvals
from mcp_junction.upstream.outcome import Outcome


class ApprovalQuestions:
    """Turns the answer to a call that waits for approval into a question."""

    def __init__(self, questions: UrlQuestions, approvals: Approvals) -> None:
        self._questions = questions
        self._approvals = approvals

    def ask(self, call: Call, outcome: Outcome) -> Outcome:
        """Return how a call ends for this client that a person has to approve."""
        route, data = call.route, read_error(outcome.payload).get("data", {})
        approval_id, url = data.get("approval_id"), data.get("url")
        if route is None or not approval_id or not url:
            return outcome

        async def wait() -> None:
            await self._approvals.wait_until_decided(approval_id)

        message = f"Somebody has to approve the call of {route.pair.name!r}."
        question = PageQuestion(APPROVAL, approval_id, url, message, wait)
        return self._questions.ask(call, route, outcome, question)
