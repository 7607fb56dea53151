"""Messages to bytes and back: pure functions over values, and every limit on what arrives.

``codec`` packs messages and unpacks frames, ``payload`` does the same for a user's values, ``chunks`` cuts large
messages up and puts them together, ``proof`` answers the challenge of a handshake, ``limits`` holds every number.
Nothing here reads a clock, waits, logs or draws a random number. What the other side got wrong is always a
``RemoteViolation``, what this side got wrong a ``BadOption``. docs/protocol.md describes the format.
"""
