import math
import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiedreq.errors import BadOption
from tiedreq.laws import (
    Bimodal,
    Constant,
    Exponential,
    LognormalMean,
    LognormalMedian,
    Mixture,
    ServiceLaw,
    Straggling,
    Uniform,
    parse_law,
)
from tiedreq.units import DURATION_MAX

durations = st.floats(0, DURATION_MAX)
probabilities = st.floats(0, 1)


@st.composite
def lognormal_means(draw: st.DrawFn) -> LognormalMean:
    average = draw(durations)
    return LognormalMean(average, draw(st.floats(0, min(1000 * average, DURATION_MAX))))


@st.composite
def mixtures(draw: st.DrawFn, parts: st.SearchStrategy[ServiceLaw]) -> Mixture:
    laws = draw(st.lists(parts, min_size=1, max_size=4))
    raw = [draw(st.integers(1, 100)) for _ in laws]
    return Mixture(tuple((weight / sum(raw), law) for weight, law in zip(raw, laws, strict=True)))


simple_laws: st.SearchStrategy[ServiceLaw] = st.one_of(
    st.builds(Constant, durations),
    st.builds(Exponential, durations),
    st.builds(LognormalMedian, durations, st.floats(0, 4)),
    lognormal_means(),
    st.tuples(durations, durations).map(lambda ends: Uniform(min(ends), max(ends))),
    st.builds(Bimodal, durations, durations, probabilities),
)
laws: st.SearchStrategy[ServiceLaw] = st.recursive(
    simple_laws,
    lambda inner: st.one_of(mixtures(inner), st.builds(Straggling, inner, st.floats(0, 10_000), probabilities)),
    max_leaves=5,
)


@pytest.mark.parametrize(
    ("text", "law"),
    [
        ("const(10ms)", Constant(0.010)),
        ("exp(10ms)", Exponential(0.010)),
        ("lognormal(mean=5ms,sd=2ms)", LognormalMean(0.005, 0.002)),
        ("lognormal(median=40ms,sigma=0.25)", LognormalMedian(0.040, 0.25)),
        ("lognormal(sigma=0.25, median=40ms)", LognormalMedian(0.040, 0.25)),
        ("uniform(200ms,600ms)", Uniform(0.2, 0.6)),
        ("bimodal(10ms,300ms,0.02)", Bimodal(0.010, 0.300, 0.02)),
        ("exp(10ms)*10@0.05", Straggling(Exponential(0.010), 10, 0.05)),
        (" exp( 10ms ) * 10 @ 0.05 * 2@0.5", Straggling(Straggling(Exponential(0.010), 10, 0.05), 2, 0.5)),
        (
            "mix(0.96:lognormal(median=25ms,sigma=0.5),0.04:uniform(200ms,600ms))",
            Mixture(((0.96, LognormalMedian(0.025, 0.5)), (0.04, Uniform(0.2, 0.6)))),
        ),
        (
            "mix(0.5:exp(1ms)*3@0.1,0.5:mix(1:const(0)))*2@1",
            Straggling(
                Mixture(((0.5, Straggling(Exponential(0.001), 3, 0.1)), (0.5, Mixture(((1.0, Constant(0)),))))), 2, 1
            ),
        ),
    ],
)
def test_every_form_is_read(text: str, law: ServiceLaw) -> None:
    assert parse_law(text) == law


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("exp(10)", "exp mean: '10' has no unit"),
        ("exp(-1ms)", "exp mean: '-1ms' is outside 0 to 86400s"),
        ("exp", "'exp' is not a law; write for example exp(10ms)"),
        ("", "is not a law"),
        ("exp(1ms))", "exp mean: '1ms)' is not a duration"),
        ("gamma(1ms)", "unknown law 'gamma'; one of bimodal, const, exp, lognormal, mix, uniform"),
        ("exp(1ms,2ms)", "exp: takes mean"),
        ("bimodal(1ms,2ms)", "bimodal: takes fast,slow,probability"),
        ("bimodal(1ms,2ms,1.5)", "bimodal probability: 1.5 is outside 0 to 1"),
        ("uniform(2ms,1ms)", "uniform high: 0.001 seconds is outside 2ms to 86400s"),
        ("lognormal(1ms,2ms)", "lognormal: takes mean=,sd= or median=,sigma="),
        ("lognormal(mean=1ms,mean=2ms)", "lognormal: takes"),
        ("lognormal(mean=1ms,sigma=1)", "lognormal: takes"),
        ("lognormal(median=1ms,sigma=5)", "lognormal sigma: 5.0 is outside 0 to 4"),
        ("lognormal(mean=1us,sd=1h)", "lognormal sd: 3600s is more than 1000 times the mean 1us"),
        ("exp(1ms)*3", "ends in no FACTOR@PROBABILITY"),
        ("exp(1ms)*3@2", "straggler probability: 2.0 is outside 0 to 1"),
        ("exp(1ms)*99999@0.1", "straggler factor: 99999.0 is outside 0 to 10000"),
        ("mix(0.5:exp(1ms),0.4:exp(2ms))", "mix weights: they sum to 0.9, not to 1"),
        ("mix(exp(1ms))", "mix: 'exp(1ms)' is not WEIGHT:LAW"),
        ("mix(2:exp(1ms))", "mix weight: 2.0 is outside 0 to 1"),
        (f"mix({','.join(['0.05:exp(1ms)'] * 20)})", "mix: 20 laws is outside 1 to 16"),
        ("mix(1:" * 20 + "exp(1ms)" + ")" * 20, "nested more than 8 deep"),
        ("exp(1ms)" + "*2@0.1" * 20, "nested more than 8 deep"),
        ("exp(1ms)" * 1000, "more than 2000 characters"),
    ],
)
def test_a_bad_law_is_refused_with_field_and_limit(text: str, why: str) -> None:
    with pytest.raises(BadOption, match=f"^--service: .*{re.escape(why)}"):
        parse_law(text, field="--service")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Constant(math.nan), "const value: nan seconds"),
        (lambda: Exponential(math.inf), "exp mean: inf seconds"),
        (lambda: LognormalMedian(1.0, -0.1), "lognormal sigma: -0.1"),
        (lambda: Uniform(0.2, 0.1), "uniform high: 0.1 seconds is outside 200ms"),
        (lambda: Mixture(()), "mix: 0 laws is outside 1 to 16"),
        (lambda: Bimodal(0.1, 0.2, True), "bimodal probability: True is not a number"),
    ],
)
def test_a_law_made_in_code_validates_itself(make: object, why: str) -> None:
    assert callable(make)
    with pytest.raises(BadOption, match=f"^{re.escape(why)}"):
        make()


def test_a_law_that_could_not_be_read_back_is_refused() -> None:
    wide = Mixture(tuple((1 / 16, LognormalMedian(0.123456789, 0.123456789)) for _ in range(16)))
    with pytest.raises(BadOption, match="more than 2000 characters when written"):
        Mixture(tuple((1 / 16, wide) for _ in range(16)))


@given(laws)
def test_a_law_reads_back_to_an_equal_one(law: ServiceLaw) -> None:
    assert parse_law(str(law)) == law


@given(laws, st.integers())
def test_samples_are_finite_and_never_negative_and_repeat_with_the_seed(law: ServiceLaw, seed: int) -> None:
    first, second = Random(seed), Random(seed)
    for _ in range(10):
        sample = law.sample(first)
        assert 0 <= sample < math.inf
        assert sample == law.sample(second)


@pytest.mark.parametrize(
    "text",
    [
        "const(10ms)",
        "exp(10ms)",
        "lognormal(mean=5ms,sd=2ms)",
        "lognormal(median=40ms,sigma=0.25)",
        "uniform(200ms,600ms)",
        "bimodal(10ms,300ms,0.02)",
        "lognormal(mean=5ms,sd=2ms)*10@0.05",
        "mix(0.96:lognormal(median=25ms,sigma=0.5),0.04:uniform(200ms,600ms))",
        "mix(0.2:const(1ms),0.3:exp(10ms)*3@0.5,0.5:const(0))",
    ],
)
def test_the_sample_mean_is_the_mean(text: str) -> None:
    law, rng, count = parse_law(text), Random(7), 40_000
    samples = [law.sample(rng) for _ in range(count)]
    average = math.fsum(samples) / count
    deviation = math.sqrt(math.fsum((sample - average) ** 2 for sample in samples) / count)
    assert average == pytest.approx(law.mean(), abs=5 * deviation / math.sqrt(count) + 1e-12)


def test_the_lognormal_by_mean_has_its_standard_deviation() -> None:
    law, rng, count = LognormalMean(0.005, 0.002), Random(3), 40_000
    samples = [law.sample(rng) for _ in range(count)]
    deviation = math.sqrt(math.fsum((sample - 0.005) ** 2 for sample in samples) / count)
    assert deviation == pytest.approx(0.002, rel=0.03)
