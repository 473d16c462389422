r"""How far any perturbation can raise a smoothed score: percentile smoothing and its certificate.

Let R be a score, :math:`g \sim N(0, \sigma^2 I)` noise where a perturbation acts, and :math:`h_p(x)` the lower
p-quantile of R(x + g), :math:`\inf \{ t : P(R(x + g) \le t) \ge p \}`. For every δ with :math:`\|\delta\|_2 \le r`

.. math:: h_p(x + \delta) \le h_{\bar p}(x), \qquad \bar p = \Phi(\Phi^{-1}(p) + r / \sigma)

for any measurable R, whatever was known or tried in finding δ. It is tight: a half space attains it. What is bounded
is the *exact* quantile at x + δ. It is not the score of a predictor whose few draws of noise are fixed and known,
which an attack can fit; for draws made afresh after the attack see :func:`fresh_percentile`.

Sources: Chiang et al., "Detection as Regression: Certified Object Detection by Median Smoothing", NeurIPS 2020, which
rests on Cohen et al., "Certified Adversarial Robustness via Randomized Smoothing", ICML 2019. Both take the noise to
be exactly normal. That float32 numbers of a pseudo-random generator stand in for it is a gap; see Voráček and Hein,
"Sound Randomized Smoothing in Floating-Point Arithmetics", arXiv 2207.07209.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import betainc, betaincinv, ndtr, ndtri


class Bound(NamedTuple):
    """A certified upper bound on a smoothed score, for one utterance and radius."""

    radius: float  # ℓ2, in the unit of σ
    percentile: float  # p̄, of the unperturbed scores
    upper: float  # at least h_p(x + δ) with confidence 1 − α; inf where nothing is certified
    rank: int | None  # which of the n scores in ascending order the bound is, from 1; None: none of them suffices
    needed: int | None  # the fewest draws with which one suffices; None: more than a float can count
    failed: int  # draws without a score, counted as +inf

    @property
    def reason(self) -> str:
        """Why nothing is certified, one sentence; empty where something is."""
        if math.isfinite(self.upper):
            return ""
        if self.rank is None:
            draws = "more draws than can be counted" if self.needed is None else f"at least {self.needed} draws"
            return f"The radius {self.radius:.4g} needs {draws}."
        if not self.failed:
            return "The scores of too many draws are +inf."
        return f"{self.failed} draws without a score count as +inf."


def certificate(
    scores: Sequence[float] | np.ndarray,
    *,
    radius: float,
    sigma: float,
    percentile: float = 0.5,
    alpha: float = 0.001,
) -> Bound:
    r"""Bounds the smoothed score of an utterance under every perturbation of an ℓ2 radius.

    The bound is an order statistic of the n scores: the k-th smallest lies below :math:`h_{\bar p}` only if at least
    k of n draws do, each with probability :math:`\bar p` at most, so that the smallest k with
    :math:`P(\mathrm{Bin}(n, \bar p) \ge k) \le \alpha` gives confidence :math:`1 - \alpha`. No k does where
    :math:`\bar p^n > \alpha`.

    Args:
      scores: ``[n]``, R(x + g) for independent draws of g. One that is not a number counts as +inf.
      radius: r, in the unit of `sigma`; a budget per entry is one by :func:`l2_radius`.
      sigma: standard deviation of each entry of g.
      percentile: p of the smoothed score, 0.5 its median.
      alpha: the probability that the bound is wrong, for this utterance and radius by itself; several are all right
        with a probability that falls as their number grows. It is over the draws of `scores`, not over attacks.

    Returns:
      A :class:`Bound`. Where n is too small it is infinite, and not the end of the scale, which nothing enforces.

    Raises:
      ValueError: no scores, a negative radius, a σ that is not positive, or p or α outside (0, 1).
    """
    ordered = _ordered(scores, percentile, alpha)
    if not radius >= 0:
        raise ValueError(f"The radius of a certificate must be at least 0, got {radius}.")
    if not (math.isfinite(sigma) and sigma > 0):
        raise ValueError(f"The sigma of a certificate must be a positive number, got {sigma}.")
    n = len(ordered)
    shifted = ndtri(percentile) + radius / sigma
    above = betainc(np.arange(1, n + 1), np.arange(n, 0, -1), ndtr(shifted))  # P(Bin(n, p̄) ≥ k) for k = 1…n
    enough = np.flatnonzero(above <= alpha)
    rank = int(enough[0]) + 1 if len(enough) else None
    return Bound(
        radius=float(radius),
        percentile=float(ndtr(shifted)),
        upper=math.inf if rank is None else float(ordered[rank - 1]),
        rank=rank,
        needed=_needed(float(ndtr(-shifted)), alpha),
        failed=int(np.isnan(scores).sum()),
    )


def lower_bound(scores: Sequence[float] | np.ndarray, *, percentile: float = 0.5, alpha: float = 0.001) -> float:
    r"""What the smoothed score of an utterance is at least: the mirror of :func:`certificate` at radius 0.

    The k-th smallest of n scores lies above :math:`h_p` only if fewer than k of n draws do not, each of which does
    not with probability :math:`p` at least, so that the largest k with
    :math:`P(\mathrm{Bin}(n, p) \le k - 1) \le \alpha` gives confidence :math:`1 - \alpha`.

    Args:
      scores: as :func:`certificate`'s, of the utterance as it is: attacked, or not.
      percentile: p of the smoothed score.
      alpha: the probability that the bound is wrong.

    Returns:
      At most :math:`h_p` with confidence 1 − α; −inf where n is too small.

    Raises:
      ValueError: no scores, or p or α outside (0, 1).
    """
    ordered = _ordered(scores, percentile, alpha)
    n = len(ordered)
    below = betainc(np.arange(n, 0, -1), np.arange(1, n + 1), 1 - percentile)  # P(Bin(n, p) ≤ k − 1) for k = 1…n
    enough = np.flatnonzero(below <= alpha)
    return float(ordered[enough[-1]]) if len(enough) else -math.inf


def l2_radius(epsilon: float, entries: int) -> float:
    r"""The ℓ2 radius :math:`\epsilon \sqrt{d}` of a budget per entry: of an RMS of ε, or of a largest entry of ε.

    Args:
      epsilon: RMS of δ over d entries, where all δ of that size lie on the sphere; or a bound on its largest entry,
        where all lie within the ball, the corners on the sphere.
      entries: d, numbers that δ has: samples T, or frames · channels of a latent.
    """
    return epsilon * math.sqrt(entries)


def rank(percentile: float, draws: int) -> int:
    """Which of so many scores in ascending order is their lower p-quantile, from 1: the smallest k ≥ p · draws."""
    return max(1, math.ceil(percentile * draws - 1e-9))  # 0.1 · 30 is a little more than 3


def fresh_percentile(draws: int, *, percentile: float = 0.5, beta: float = 0.05) -> float:
    """The percentile to certify where what is deployed is the p-quantile of a few draws, made *after* the attack.

    That quantile exceeds the exact one of the percentile returned with a probability of at most `beta`, so a
    certificate at it, of confidence 1 − α, bounds what is deployed with confidence 1 − α − β. It is the upper limit
    of Clopper and Pearson (Biometrika 26, 1934).

    Args:
      draws: of the deployed predictor.
      percentile: p that it takes.
      beta: probability of an unlucky draw.

    Raises:
      ValueError: no draws, or p or β outside (0, 1).
    """
    if draws < 1:
        raise ValueError(f"Expected at least 1 draw, got {draws}.")
    for name, value in (("percentile", percentile), ("beta", beta)):
        _needs_share(name, value)
    k = rank(percentile, draws)
    return float(betaincinv(k, draws - k + 1, 1 - beta))


def _ordered(scores: Sequence[float] | np.ndarray, percentile: float, alpha: float) -> np.ndarray:
    """Scores ``[n]`` in ascending order, what is not a number as +inf; errors of what both bounds are given."""
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 1 or not len(scores):
        raise ValueError(f"A certificate needs the scores [n] of at least one draw, got shape {scores.shape}.")
    for name, value in (("percentile", percentile), ("alpha", alpha)):
        _needs_share(name, value)
    return np.sort(np.where(np.isnan(scores), np.inf, scores))


def _needed(beyond: float, alpha: float) -> int | None:
    """The smallest n with ``(1 − beyond)^n ≤ alpha``."""
    least = math.log(alpha) / math.log1p(-beyond) if 0 < beyond < 1 else (math.inf if beyond == 0 else 1.0)
    return math.ceil(least) if math.isfinite(least) else None


def _needs_share(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"The {name} must lie between 0 and 1, got {value}.")
