"""The two eras of the protocol: how clients of either reach servers of either.

Nouns: *Adapter* (one for each pair of eras), *EraLinks* (chooses a call's link and its adapter),
*ParkedCall* (a call whose client must answer a question first), *Ticket* (what that client brings
back), *Resume* (the stage that continues such a call).
"""
