"""The crossing between the two eras of the protocol.

Nouns: *Ride* (a call of a client that is not there while it is asked), *Lot* (where rides wait),
*Seal* (what a client brings back to go on). A client and a server of one era need none of this.
"""
