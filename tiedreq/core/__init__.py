"""The pure protocol cores: every decision, and nothing else.

A core takes one event at a time through ``step(event, now)`` and returns a list of commands. It never reads a clock,
draws a random number of its own, logs, or waits; time and random numbers come in as arguments. The drivers in
``tiedreq.net`` and ``tiedreq.sim`` execute the commands and decide nothing.
"""
