"""OAuth as pure rules: what a client must read, check and choose before it holds a token.

Nouns: *BearerChallenge* (what a 401 or 403 asks for), *ResourceMetadata* and *IssuerMetadata* (what
the documents of a server and of its authorization server say), *OAuthClient* (who we are there),
*TokenAnswer*. Facts in, decision out: requests are made and tokens are kept in ``credentials/``.
"""
