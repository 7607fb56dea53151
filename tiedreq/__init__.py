"""Tied and hedged requests between the replicas of a service, on Trio."""
