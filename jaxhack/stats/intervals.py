"""Confidence intervals."""

from scipy.special import betaincinv


def clopper_pearson(successes: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """The exact interval of a proportion (Clopper and Pearson, Biometrika 26, 1934).

    Args:
      successes: of `n` independent trials.
      n: trials. None at all exclude nothing: the interval is (0, 1).
      level: coverage, in (0, 1); never less, often more.

    Raises:
      ValueError: not 0 ≤ successes ≤ n, or a level outside (0, 1).
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes must lie between 0 and n, got {successes} of {n}")
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    tail = (1 - level) / 2
    low = float(betaincinv(successes, n - successes + 1, tail)) if successes > 0 else 0.0
    high = float(betaincinv(successes + 1, n - successes, 1 - tail)) if successes < n else 1.0
    return low, high
