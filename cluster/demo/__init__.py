"""The service out of the box: full-text search over the documentation of Python's standard library.

``documentation`` reads the docstrings from the modules' source, ``index`` builds the SQLite file that the launcher
makes once, ``library`` answers from it, ``workload`` is the artificial work of experiments, ``settings`` carries the
configuration from the launcher to a replica, ``arguments`` checks what callers send, and ``service`` puts them
together: methods ``search``, ``lookup``, ``charge`` and ``work``.

Not for other corpora: whoever wants to search something else writes a service of their own and runs it by ``--app``.
"""
