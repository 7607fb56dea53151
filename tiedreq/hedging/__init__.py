"""Hedging towards services that are not ours: what the HTTP transport and the gRPC interceptor have in common.

``race`` drives one ``CallCore`` over a carrier that can begin and stop copies; ``upstream`` holds what is known of one
service and its hosts; ``observing`` tells observers what happens. No event loop, thread or protocol is known here: time
comes in as an argument, and whoever carries the copies sees to it that one thing is told at a time.
"""
