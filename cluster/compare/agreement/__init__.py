"""Whether the laboratory agrees with exact theory and with published figures: `python -m cluster.compare.agreement`."""
