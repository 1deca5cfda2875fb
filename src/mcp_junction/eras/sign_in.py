"""SignInQuestions: asks clients to sign in to a server, in the way that each can be asked.

Where all share one sign-in, only the operator is asked. How clients are asked is in
``url_questions.py``.
"""

from __future__ import annotations

from typing import Final

from mcp_junction.calls.call import Call
from mcp_junction.eras.resume import SIGN_IN
from mcp_junction.eras.url_questions import PageQuestion, UrlQuestions, read_error
from mcp_junction.policy.principal import Role
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Outcome

_OPERATORS: Final = (Role.OWNER, Role.ADMIN)


class SignInQuestions:
    """Turns the refusal of a call into a question, for clients that can be asked."""

    def __init__(self, questions: UrlQuestions) -> None:
        self._questions = questions

    def ask(self, call: Call, outcome: Outcome) -> Outcome:
        """Return how a call ends for this client whose server needs a sign-in."""
        route, link = call.route, read_error(outcome.payload).get("data", {}).get("sign_in")
        if route is None or not link:
            return outcome
        definition, tokens = route.upstream.definition, route.upstream.tokens
        is_down = tokens is not None and tokens.is_signed_out and route.upstream.link is None
        if (is_down or not definition.is_per_agent) and not self._is_operator(call):
            words = "all who call share its sign-in; ask whoever runs this gateway to sign in"
            plain = outcomes.sign_in_needed(definition.key, words)
            return plain.counted(outcome.attempts, outcome.target)
        source = None if tokens is None else tokens.for_principal(call.user)

        async def wait() -> None:
            while source is not None and source.is_signed_out:
                await source.wait_for_change()

        message = f"Sign in to {definition.key!r} to go on."
        question = PageQuestion(SIGN_IN, definition.key, link, message, wait)
        return self._questions.ask(call, route, outcome, question)

    @staticmethod
    def _is_operator(call: Call) -> bool:
        return call.user.role in _OPERATORS and not call.user.acting_for
