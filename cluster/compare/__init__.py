"""The laboratory: policies compared on the same replicas, simulated in virtual time and live."""
