"""The laws of the reference scenarios: exactly, and as learned from samples."""

from __future__ import annotations

import math
from functools import cache
from random import Random
from statistics import NormalDist

from tiedreq import laws
from tiedreq.core.latency import LatencyEstimator, Law, law_of

LAWS = {
    "rare-stalls": laws.parse_law("bimodal(10ms,300ms,0.02)"),
    "cold-cache": laws.parse_law("mix(0.8:lognormal(mean=15ms,sd=3ms),0.2:lognormal(mean=200ms,sd=25ms))"),
    "long-tail": laws.parse_law("lognormal(median=40ms,sigma=0.25)*10@0.03"),
    "stragglers": laws.parse_law("lognormal(mean=5ms,sd=2ms)*10@0.05"),
    "constant": laws.parse_law("const(10ms)"),
    "exponential": laws.parse_law("exp(10ms)"),
    "heavy": laws.parse_law("lognormal(median=10ms,sigma=1.5)"),
}

POINTS = 4_000


def _quantiles(law: laws.ServiceLaw) -> list[tuple[float, float]]:
    """Pairs of a time and its weight that stand for a law, ``POINTS`` for each smooth part."""
    middles = [(k + 0.5) / POINTS for k in range(POINTS)]
    match law:
        case laws.Constant():
            return [(law.value, 1.0)]
        case laws.Bimodal():
            return [(law.fast, 1 - law.probability), (law.slow, law.probability)]
        case laws.Exponential():
            return [(-law.average * math.log(1 - q), 1 / POINTS) for q in middles]
        case laws.LognormalMedian() | laws.LognormalMean():
            return [(time, 1 / POINTS) for time in _lognormal(law, middles)]
        case laws.Straggling():
            parts = ((1 - law.probability, 1.0), (law.probability, law.factor))
            inner = _quantiles(law.law)
            return [(time * factor, weight * share) for share, factor in parts for time, weight in inner]
        case laws.Mixture():
            return [(time, weight * share) for share, part in law.parts for time, weight in _quantiles(part)]
    raise NotImplementedError(law)


def _lognormal(law: laws.LognormalMedian | laws.LognormalMean, middles: list[float]) -> list[float]:
    if isinstance(law, laws.LognormalMean):
        variance = math.log1p((law.deviation / law.average) ** 2)
        median, sigma = law.average * math.exp(-variance / 2), math.sqrt(variance)
    else:
        median, sigma = law.median, law.sigma
    normal = NormalDist(0.0, sigma)
    return [median * math.exp(normal.inv_cdf(q)) for q in middles]


@cache
def exact(name: str) -> Law:
    """A reference law, as if a million samples had been seen."""
    return law_of(_quantiles(LAWS[name]), 1_000_000)


@cache
def learned(name: str, samples: int, seed: int) -> Law:
    """The law as the estimator has it after so many samples."""
    rng, estimator = Random(seed), LatencyEstimator()
    for _ in range(samples):
        estimator.add(LAWS[name].sample(rng), 0.0)
    law = estimator.law()
    assert law is not None
    return law
