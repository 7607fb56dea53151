"""The simulator: the production cores in virtual time, with faults drawn from one seed.

It never imports trio, a clock or a logger. ``world`` puts cores, network and workload together, ``run`` is one seed
from its options to its verdict.
"""
