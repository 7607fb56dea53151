"""To see what a replica or a client does: pictures as plain values, metrics, health, traces, and why a call took long.

Import what you need from its module: nothing here is loaded before it is used. See docs/operating.md.
"""
