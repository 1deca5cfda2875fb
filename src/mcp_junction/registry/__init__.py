"""The registry: which servers there are at run time, and what is known of each."""
