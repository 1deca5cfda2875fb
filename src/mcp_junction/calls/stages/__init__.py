"""One policy, one file. Each stage is ``async (call, following) -> Outcome``, or bound to it."""
