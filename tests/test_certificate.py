"""Certified bounds: the order statistic, its coverage, its tightness, and attacks that do not cross it."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from scipy.special import ndtr, ndtri
from scipy.stats import binom

import jaxhack as jh
from jaxhack import attackers, spaces
from jaxhack.certifying import certify
from jaxhack.defences import Noise, smoothed
from jaxhack.objective import heard, objective
from jaxhack.stats import certificate, fresh_percentile, l2_radius, lower_bound
from jaxhack.stats.certificate import rank

SCORES = np.arange(10.0)


def test_the_order_statistic_by_hand():
    # P(Bin(10, ½) ≥ 9) = 11/1024, P(Bin(10, ½) ≥ 10) = 1/1024.
    found = certificate(SCORES[::-1], radius=0.0, sigma=2.0, alpha=11 / 1024 + 1e-9)
    assert (found.upper, found.rank, found.percentile, found.needed) == (8.0, 9, 0.5, 7)
    assert certificate(SCORES, radius=0.0, sigma=2.0, alpha=1 / 1024 + 1e-9).upper == 9.0
    # Shifted by one σ the median is the 84 % quantile, and of that by another the 97.7 % one.
    for percentile, expected in ((0.5, 0.841345), (0.841345, 0.977250)):
        moved = certificate(SCORES, radius=2.0, sigma=2.0, percentile=percentile)
        assert moved.percentile == pytest.approx(expected, abs=1e-5)


def test_where_nothing_is_certified():
    few = certificate(SCORES, radius=0.0, sigma=1.0, alpha=1 / 1025)
    assert (few.upper, few.rank, few.needed) == (math.inf, None, 11)
    assert few.reason == "The radius 0 needs at least 11 draws."
    assert certificate(np.arange(11.0), radius=0.0, sigma=1.0, alpha=1 / 1025).upper == 10.0
    far = certificate(SCORES, radius=20.0, sigma=1.0)
    assert far.upper == math.inf and far.needed == pytest.approx(math.log(1000) / ndtr(-20.0))
    beyond = certificate(SCORES, radius=100.0, sigma=1.0)
    assert beyond.upper == math.inf and beyond.needed is None and "more draws than can be counted" in beyond.reason


def test_draws_without_a_score_count_as_infinite():
    scores = np.concatenate([np.arange(20.0), [np.nan] * 5])
    found = certificate(scores, radius=0.0, sigma=1.0, alpha=0.01)
    assert (found.failed, found.upper, found.reason) == (5, 18.0, "")
    worse = certificate(scores, radius=1.0, sigma=1.0, alpha=0.1)
    none = certificate(np.full(20, np.inf), radius=0.0, sigma=1.0, alpha=0.01)
    assert none.upper == math.inf and none.reason == "The scores of too many draws are +inf."
    assert worse.upper == math.inf and worse.rank is not None and worse.reason.startswith("5 draws without a score")


@pytest.mark.parametrize("steps", [None, 3.0], ids=["continuous", "with atoms"])
def test_coverage(steps):
    """Of scores whose quantiles are known, the bound misses as rarely as it says, and not much more rarely."""
    n, alpha, radius, trials = 200, 0.05, 1.0, 4000
    scores = np.random.default_rng(0).normal(size=(trials, n))
    scores = scores if steps is None else np.ceil(scores * steps) / steps
    true = ndtri(ndtr(radius)) if steps is None else math.ceil(radius * steps) / steps
    found = [certificate(row, radius=radius, sigma=1.0, alpha=alpha) for row in scores]
    missed = np.mean([bound.upper < true for bound in found])
    exact = binom.sf(found[0].rank - 1, n, found[0].percentile)
    assert 0.6 * alpha < exact <= alpha < binom.sf(found[0].rank - 2, n, found[0].percentile)
    if steps is None:
        assert missed == pytest.approx(exact, abs=4 * math.sqrt(alpha / trials))
    else:
        assert missed <= exact + 4 * math.sqrt(alpha / trials)


def test_the_lower_bound_by_hand():
    # P(Bin(10, ½) ≤ 1) = 11/1024, P(Bin(10, ½) ≤ 0) = 1/1024.
    assert lower_bound(SCORES[::-1], alpha=11 / 1024 + 1e-9) == 1.0
    assert lower_bound(SCORES, alpha=1 / 1024 + 1e-9) == 0.0 and lower_bound(SCORES, alpha=1 / 1025) == -math.inf
    # Mirrored, of an upper bound: P(Bin(10, 0.8) ≤ k) = P(Bin(10, 0.2) ≥ 10 − k).
    mirrored = -certificate(-SCORES, radius=0.0, sigma=1.0, percentile=0.2, alpha=0.05).upper
    assert lower_bound(SCORES, percentile=0.8, alpha=0.05) == mirrored == 5.0
    assert lower_bound([math.nan, *SCORES], alpha=0.01) == 1.0, "a draw without a score is above the others"
    with pytest.raises(ValueError, match="at least one draw"):
        lower_bound([])


@pytest.mark.parametrize("steps", [None, 3.0], ids=["continuous", "with atoms"])
def test_coverage_of_the_lower_bound(steps):
    """It is as rarely above the quantile as it says, and not much more rarely."""
    n, alpha, percentile, trials = 200, 0.05, 0.7, 4000
    scores = np.random.default_rng(1).normal(size=(trials, n))
    scores = scores if steps is None else np.ceil(scores * steps) / steps
    true = ndtri(percentile) if steps is None else math.ceil(ndtri(percentile) * steps) / steps
    missed = np.mean([lower_bound(row, percentile=percentile, alpha=alpha) > true for row in scores])
    k = int(lower_bound(np.arange(1.0, n + 1), percentile=percentile, alpha=alpha))
    exact = binom.cdf(k - 1, n, percentile)
    assert 0.6 * alpha < exact <= alpha < binom.cdf(k, n, percentile)
    if steps is None:
        assert missed == pytest.approx(exact, abs=4 * math.sqrt(alpha / trials))
    else:
        assert missed <= exact + 4 * math.sqrt(alpha / trials)


def test_fresh_draws_stay_below_the_percentile_that_stands_for_them():
    draws, beta, trials = 31, 0.05, 4000
    high = fresh_percentile(draws, beta=beta)
    medians = np.median(np.random.default_rng(0).uniform(size=(trials, draws)), axis=1)
    assert np.mean(medians > high) == pytest.approx(beta, abs=4 * math.sqrt(beta / trials))
    assert rank(0.5, 31) == 16 and rank(0.1, 30) == 3 and rank(0.01, 3) == 1 and rank(0.99, 3) == 3


def linear():
    """The toy and the length of its slope by a waveform of 1600 samples: its score moves by that much in ℓ2."""
    return toys.predictor(), 40 * float(np.linalg.norm(toys.TARGET)) / math.sqrt(1600 / toys.HOP)


@pytest.mark.usefixtures("one_device")
def test_the_bound_is_nearly_the_worst_case_of_a_linear_score():
    """Noise moves a linear score by σ‖w‖, the worst perturbation by r‖w‖: the theorem is an equality."""
    toy, slope = linear()
    wav, sigma = toys.speechlike(0.1, 3), 0.02
    epsilons = [0.0, 0.25 * sigma / 40, sigma / 40, 2 * sigma / 40, 5 * sigma / 40]
    (found,) = certify(toy, Noise(sigma), [("a", wav)], epsilons=epsilons, draws=2000)
    score = float(toy.score(toy.params, wav, jnp.int32(1600)))
    reached = score + slope * np.array([0.0, 0.25, 1.0, 2.0]) * sigma
    bounds = np.array([bound.upper for bound in found.bounds])
    assert [bound.radius for bound in found.bounds[:3]] == pytest.approx([0.0, 0.25 * sigma, sigma])
    assert found.score == pytest.approx(score, abs=0.1 * slope * sigma)
    assert (bounds[:4] > reached).all()
    assert (bounds[:4] < reached + 0.35 * slope * sigma).all()
    assert bounds[4] == np.inf and "draws" in found.bounds[4].reason


def bumpy():
    """A score that rises by fits and starts."""
    toy = toys.predictor()

    def heads(params, wav, length):
        score = toy.heads(params, wav, length)
        return score + 0.3 * jnp.sin(3 * score)

    return toy._replace(heads=heads)


@pytest.mark.usefixtures("one_device")
def test_no_attack_of_ours_crosses_the_bound():
    """In a latent, whose RMS budget is an ℓ2 sphere; the attack knows the draws that it attacks."""
    codec, length = toys.codec(), jnp.int32(1600)
    statistics = spaces.Statistics(jnp.zeros(toys.CHANNELS), jnp.full(toys.CHANNELS, 0.2))
    noise = Noise(0.5, codec, statistics)
    radius = 1.5 * noise.sigma
    epsilon = radius / math.sqrt(100 * toys.CHANNELS)
    space = spaces.latent(codec, epsilon=epsilon, statistics=statistics)
    target = objective(smoothed(bumpy(), noise, draws=9), space)
    ours = (attackers.pgd(target, steps=8), attackers.nes(target, queries=100, held=True))

    @jax.jit
    def attack(wav, key):
        point = space.encode(wav, length)
        deltas = [space.project(point, attacker.act(None, key, point)) for attacker in ours]
        return [heard(space.render(point, d), length) for d in (jnp.zeros_like(deltas[0]), *deltas)]

    wavs = [np.asarray(wav) for wav in attack(jnp.asarray(toys.speechlike(0.1, 0)), jax.random.key(0))]
    z = np.stack([codec.encode(codec.params, wav).ravel() for wav in wavs]) / statistics.scale[0]
    assert np.linalg.norm(z[1:] - z[0], axis=1) == pytest.approx([radius, radius], rel=0.01)
    epsilons = [0.0, 1.01 * epsilon]
    clean, *attacked = certify(bumpy(), noise, [("", wav) for wav in wavs], epsilons=epsilons)
    gains, most = [found.score - clean.score for found in attacked], clean.bounds[1].upper - clean.score
    assert min(gains) > 0.5 * most, "the attacks are too weak to test anything"
    assert max(gains) < most < math.inf


def test_certificates_of_utterances_are_their_own():
    toy, noise = toys.predictor(), Noise(0.02)
    one, other = toys.speechlike(0.1, 0), toys.speechlike(0.15, 1)
    arguments = {"epsilons": [0.0], "draws": 50, "alpha": 0.01}
    both = list(certify(toy, noise, [("a", one), ("b", other)], **arguments))
    (alone,) = certify(toy, noise, [("a", one)], **arguments)
    np.testing.assert_array_equal(alone.scores, both[0].scores)
    assert [found.utterance for found in both] == ["a", "b"] and len(set(both[1].scores)) == 50
    (short,) = certify(toy, noise, [("c", one[:8])], **arguments)
    assert math.isnan(short.score) and short.bounds[0].upper == math.inf and short.bounds[0].failed == 50


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"radius": -1.0}, "radius of a certificate must be at least 0, got -1"),
        ({"radius": math.nan}, "got nan"),
        ({"sigma": 0.0}, "sigma of a certificate must be a positive number, got 0"),
        ({"alpha": 0.0}, "alpha must lie between 0 and 1, got 0"),
        ({"percentile": 1.0}, "percentile must lie between 0 and 1, got 1"),
        ({"scores": []}, r"at least one draw, got shape \(0,\)"),
    ],
)
def test_refusals(change, reason):
    with pytest.raises(ValueError, match=reason):
        certificate(**({"scores": SCORES, "radius": 0.0, "sigma": 1.0} | change))


@pytest.mark.parametrize("change", [{"draws": 1.5}, {"draws": 0}, {"seed": 2**64}, {"seed": -1}])
def test_what_cannot_be_drawn_is_refused(change):
    with pytest.raises(ValueError, match="whole number"):
        next(certify(toys.predictor(), Noise(0.1), [("a", np.ones(32, np.float32))], epsilons=[0.0], **change))


def test_budgets_as_radii():
    assert l2_radius(0.002, 48000) == pytest.approx(0.438, abs=1e-3)
    assert jh.certify is certify
