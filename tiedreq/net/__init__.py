"""The Trio driver: websockets, links, the mesh, the replica server and the client.

A driver turns bytes into events, gives them to a core, and executes the core's commands. It has no protocol decision
of its own.
"""
