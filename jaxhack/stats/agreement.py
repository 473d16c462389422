"""How well scores agree with ratings, and the same on resampled data.

A *resample* says how often each unit is drawn: a row of `counts`. A unit is a system with all its utterances, or an
utterance; so every statistic here is one of weighted data, exactly what it would be if a point drawn twice stood
there twice, and thousands of resamples are a few products of matrices.
"""

import warnings
from collections.abc import Sequence

import numpy as np
from scipy import stats
from scipy.special import ndtr

STATISTICS = ("srcc", "lcc", "ktau", "mse")
FEWEST = 3  # points that a correlation needs: any two are perfectly correlated, and say nothing
_DECIMALS = 9  # of a system's mean
_AT_ONCE = 128  # resamples
_ELEMENTS = 2**21  # of a matrix of pairs that is held at once


def statistics(scores: np.ndarray, mos: np.ndarray) -> np.ndarray:
    """Spearman's and Pearson's correlation, Kendall's τ-b, and the mean squared error of the raw scores.

    Args:
      scores: ``[N]``, finite.
      mos: ``[N]``, finite.

    Returns:
      ``[4]`` in the order of :data:`STATISTICS`. NaN where undefined: correlations of fewer than three points or of
      values that are all equal, an error of none.
    """
    scores, mos = np.asarray(scores, np.float64), np.asarray(mos, np.float64)
    error = np.mean((scores - mos) ** 2) if len(mos) else np.nan
    if len(mos) < FEWEST or np.ptp(scores) == 0 or np.ptp(mos) == 0:
        return np.array([np.nan, np.nan, np.nan, error])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.NearConstantInputWarning)
        found = [f(scores, mos).statistic for f in (stats.spearmanr, stats.pearsonr, stats.kendalltau)]
    return np.array([*found, error], np.float64)


def draw(units: int, resamples: int, seed: int) -> np.ndarray:
    """How often each unit is drawn, ``[resamples, units]`` float32: as many draws as there are units, with return."""
    rng = np.random.default_rng(seed)
    counts = np.empty((resamples, units), np.float32)
    for row in counts:
        row[:] = np.bincount(rng.integers(units, size=units), minlength=units)
    return counts


def resampled(scores: np.ndarray, mos: np.ndarray, unit: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The statistics of :func:`statistics` on resamples, all predictors on the same.

    Args:
      scores: ``[P, N]``, finite, of P predictors.
      mos: ``[N]``, finite.
      unit: ``[N]`` int, which unit each point belongs to; none is without points.
      counts: ``[R, U]``, of :func:`draw`.

    Returns:
      ``[P, 4, R]``. NaN where a correlation is undefined because a resample holds but one value.
    """
    by_unit = np.argsort(unit, kind="stable")
    scores, mos, unit = (np.asarray(a)[..., by_unit] for a in (scores, mos, unit))
    starts = np.flatnonzero(np.diff(unit, prepend=-1))
    made = np.empty((len(scores), len(STATISTICS), len(counts)))
    for i in range(0, len(counts), _AT_ONCE):
        span = slice(i, i + _AT_ONCE)
        weights = np.ascontiguousarray(counts[span].T)[unit]  # points first: what is gathered is whole rows
        rank_mos, square_mos, pairs_mos = _ranks(mos, weights)
        for p, of in enumerate(scores):
            rank, square, pairs = _ranks(of, weights)
            rank *= weights
            made[p, 0, span] = _ratio(np.sum(np.multiply(rank, rank_mos, out=rank), axis=0), square, square_mos)
            made[p, 1, span], made[p, 3, span] = _moments(of, mos, starts, counts[span])
            made[p, 2, span] = np.sqrt(pairs * pairs_mos)
            made[p, 1, span][(pairs == 0) | (pairs_mos == 0)] = np.nan
    for p, of in enumerate(scores):
        made[p, 2] = _ratio(_concordance(of, mos, unit, starts, counts), made[p, 2], made[p, 2])
    return made


def interval(draws: np.ndarray, units: int, level: float = 0.95) -> tuple[float, float]:
    """A bootstrap percentile interval, expanded for few units (Hesterberg, The American Statistician 69, 2015).

    The plain percentiles of a bootstrap of n units lie too near to each other by √((n − 1)/n) and by the normal in
    place of Student's t; the expanded ones are those at Φ(∓ √(n/(n − 1)) t).

    Args:
      draws: ``[R]``; those that are NaN are left out.
      units: n, what was drawn from.
      level: coverage, in (0, 1).

    Returns:
      NaN where no interval can be given: fewer than three units, or more undefined draws than lie outside it.
    """
    known = draws[np.isfinite(draws)]
    if units < FEWEST or len(draws) - len(known) > (1 - level) * len(draws):
        return np.nan, np.nan
    tail = ndtr(-np.sqrt(units / (units - 1)) * stats.t.ppf((1 + level) / 2, units - 1))
    low, high = np.quantile(known, [tail, 1 - tail])
    return float(low), float(high)


def system_means(values: np.ndarray, system: Sequence[int] | np.ndarray) -> np.ndarray:
    """``[…, N]`` to ``[…, S]``: the mean over each system's utterances, `system` ``[N]`` from 0 to S − 1.

    Rounded to 9 decimals, so that means that are equal on paper are ties.
    """
    order = np.argsort(system, kind="stable")
    starts = np.flatnonzero(np.diff(np.asarray(system)[order], prepend=-1))
    means = np.add.reduceat(values[..., order], starts, axis=-1) / np.bincount(system)
    return np.round(means, _DECIMALS)


def _ratio(product: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return product / np.sqrt(a * b)


def _ranks(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mid-ranks about their mean of weighted values ``[N, R]``; their sum of squares and pairs that differ, ``[R]``.

    Ranks are halves of whole numbers, exact in float32, and a resample of one value has exactly 0 pairs.
    """
    _, group, size = np.unique(values, return_inverse=True, return_counts=True)
    many = weights[np.argsort(group, kind="stable")]
    if len(size) < len(values):
        many = np.add.reduceat(many, np.cumsum(size) - size, axis=0)
    middle = np.cumsum(many, axis=0)
    total = middle[-1].astype(np.float64)
    middle -= (many + middle[-1]) / 2  # cumulated − (many − 1)/2 is the rank, (total + 1)/2 the mean of all
    pairs = (total**2 - np.sum(many.astype(np.float64) ** 2, axis=0)) / 2
    return middle[group], np.einsum("gr,gr,gr->r", many, middle, middle, dtype=np.float64), pairs


def _moments(x: np.ndarray, y: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pearson's correlation and the mean squared error ``[R]`` of points ``[N]`` in the order of their units."""
    a, b = x - x.mean(), y - y.mean()
    sums = np.add.reduceat(np.stack([np.ones_like(a), a, b, a * a, b * b, a * b, (x - y) ** 2], axis=1), starts)
    weight, *means = (counts @ sums).T
    ma, mb, aa, bb, ab, error = means / weight
    return np.clip(_ratio(ab - ma * mb, np.maximum(aa - ma**2, 0), np.maximum(bb - mb**2, 0)), -1, 1), error


def _concordance(
    x: np.ndarray, y: np.ndarray, unit: np.ndarray, starts: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """Pairs in the same order less pairs in the other, on each resample ``[R]``.

    A quadratic form in the counts, whose matrix has the sums over pairs of units; made some rows at a time. Its
    entries and their sums are whole numbers that float32 holds exactly.
    """
    made = np.zeros(len(counts))
    step = max(1, _ELEMENTS // max(len(x), len(counts)))
    x, y = (np.unique(v, return_inverse=True)[1].astype(np.float32) for v in (x, y))
    for i in range(0, len(x), step):
        rows = slice(i, i + step)
        signs = np.sign(x[rows, None] - x) * np.sign(y[rows, None] - y)
        sums = np.add.reduceat(signs, starts, axis=1)
        made += np.einsum("rb,rb->r", counts @ sums.T, counts[:, unit[rows]], dtype=np.float64)
    return made / 2
