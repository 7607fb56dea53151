"""What the library promises, measured: what ``tied`` and ``auto`` reach, and that ``auto`` is never worse than plain.

``python -m cluster.compare.promises reach|harm``.
"""
