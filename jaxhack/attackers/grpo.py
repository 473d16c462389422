"""Group Relative Policy Optimisation: a policy that learns which offset raises a score, from forward scores only."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxhack.types import Array, Attacker, Objective, Point, PyTree, Queries

LOG_SIGMA_RANGE = (-5.0, 2.0)
LOG_RATIO_LIMIT = 10.0
EQUAL = 1e-5  # rewards that differ by less (standard deviation, MOS) are equal in float32


class State(NamedTuple):
    """A policy in training."""

    params: PyTree
    opt_state: PyTree


class Policy(nn.Module):
    """μ_θ(z) and log σ: four 1-D convolutions (width 3) over frames, pooled over the valid ones.

    Convolutions are written as matrix products of shifted frames: the same numbers, and ``vmap`` over several
    policies stays a batched product where a convolution would become a grouped one.
    """

    actions: int
    hidden: int
    sigma: float
    normalise_mean: bool

    @nn.compact
    def __call__(self, features: Array, frames: Array) -> tuple[Array, Array, Array]:
        """``features [N, F], frames [] -> (μ [A], log σ [A], RMS of the raw mean [])``."""
        valid = (jnp.arange(features.shape[0]) < frames)[:, None]
        x = features
        for layer in range(4):
            x = jnp.where(valid, x, 0.0)
            edge = jnp.zeros_like(x[:1])
            x = jnp.concatenate([jnp.concatenate([edge, x[:-1]]), x, jnp.concatenate([x[1:], edge])], axis=1)
            x = nn.Dense(self.actions if layer == 3 else self.hidden)(x)
            if layer < 3:
                x = nn.gelu(x)
        mean = jnp.sum(jnp.where(valid, x, 0.0), 0) / jnp.maximum(frames, 1).astype(x.dtype)
        rms = jnp.sqrt(jnp.mean(jnp.square(mean)) + 1e-12)
        if self.normalise_mean:
            mean = mean / rms
        log_sigma = self.param("log_sigma", nn.initializers.constant(jnp.log(self.sigma)), (self.actions,))
        return mean, jnp.clip(log_sigma, *LOG_SIGMA_RANGE), rms


def group_advantages(rewards: Array, *, eta: float = 1e-4) -> tuple[Array, Array, Array]:
    r"""Group-normalised advantages :math:`A_{ij} = (r_{ij} - \bar r_i) / (\mathrm{std}_j r_i + \eta)`.

    Args:
      rewards: ``[..., G]`` scores (MOS), one group per utterance.
      eta: added to the standard deviation (population, two-pass).

    Returns:
      ``(advantages [..., G], equal [...] bool, broken [...] bool)``. A group whose rewards are all equal, or that
      holds a non-finite one, has zero advantages.
    """
    finite = jnp.isfinite(rewards)
    broken = ~jnp.all(finite, -1)
    r = jnp.where(broken[..., None], 0.0, rewards)
    centred = r - jnp.mean(r, -1, keepdims=True)
    std = jnp.sqrt(jnp.mean(jnp.square(centred), -1))
    equal = (std < EQUAL) & ~broken
    advantages = centred / (std + eta)[..., None]
    return jnp.where((equal | broken)[..., None], 0.0, advantages), equal, broken


def grpo(
    objective: Objective,
    *,
    batch: int = 8,
    group: int = 8,
    learning_rate: float = 1e-3,
    clip: float = 0.2,
    epochs: int = 2,
    hidden: int = 256,
    sigma: float = 1.0,
    eta: float = 1e-4,
    normalise_mean: bool = True,
) -> Attacker:
    r"""The paper's attacker: a one-step bandit with a continuous action per utterance.

    The policy :math:`\pi_\theta = \mathcal N(\mu_\theta(z), \sigma^2)` draws `group` actions per utterance; the
    clipped surrogate :math:`\min(\rho A, \mathrm{clip}(\rho, 1 - c, 1 + c) A)` is maximised by Adam for `epochs`
    passes over the same draws. Log-probabilities are those of the unscaled action, summed over channels; the
    log-ratio is clamped to ±10.

    Args:
      objective: what is attacked; only forward scores are used, so a black box works.
      batch: utterances B of one step, used to state the number of queries.
      group: draws G per utterance, at least 2.
      learning_rate: Adam's.
      clip: half-width of the trust region of ρ.
      epochs: inner passes over one batch of draws.
      hidden: width of the policy's hidden layers.
      sigma: initial standard deviation of every action channel.
      eta: see :func:`group_advantages`.
      normalise_mean: keeps RMS(μ) at 1. The space rescales every action, so the length of μ earns no reward and
        drifts; a growing μ drowns the noise and exploration dies. False is the literal recipe.

    Returns:
      An :class:`~jaxhack.types.Attacker`; ``act`` is the policy's mean. Metrics of ``step``: reward, reward_sd (in a
      group), mu_rms (of the raw mean), sigma, log_ratio_sd, clip_fraction, groups_equal, groups_broken (shares).

    Raises:
      ValueError: if `group` < 2 (a group of one has no advantage) or another option is out of range.

    Source: "How Hackable Is Your Speech Quality Metric?", section III; DeepSeekMath (arXiv 2402.03300).
    """
    if group < 2:
        raise ValueError(f"GRPO needs a group of at least 2 draws per utterance, got {group}: one has no advantage.")
    for name, value in {"batch": batch, "epochs": epochs, "learning_rate": learning_rate, "sigma": sigma}.items():
        if not value > 0:
            raise ValueError(f"GRPO's {name} must be positive, got {value}.")
    (channels,) = objective.space.action_shape
    policy = Policy(channels, hidden, sigma, normalise_mean)
    optimiser = optax.adam(learning_rate)

    def propose(params: PyTree, points: Point) -> tuple[Array, Array, Array]:
        made: Any = jax.vmap(policy.apply, in_axes=(None, 0, 0))(params, points.features, points.frames)
        return made

    def init(key: Array) -> State:
        params = policy.init(key, jnp.zeros((4, objective.space.feature_size)), jnp.int32(4))
        return State(params, optimiser.init(params))

    def log_prob(params: PyTree, points: Point, actions: Array) -> Array:
        mean, log_sigma, _ = propose(params, points)
        mean, log_sigma = mean[:, None], log_sigma[:, None]
        return jnp.sum(-0.5 * jnp.square((actions - mean) * jnp.exp(-log_sigma)) - log_sigma, -1)

    def surrogate(params: PyTree, points: Point, actions: Array, old: Array, advantages: Array, weight: Array):
        log_ratio = jnp.clip(log_prob(params, points, actions) - old, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        ratio = jnp.exp(log_ratio)
        clipped = jnp.clip(ratio, 1 - clip, 1 + clip)
        loss = -jnp.sum(weight * jnp.minimum(ratio * advantages, clipped * advantages))
        return loss, (log_ratio, ratio != clipped)

    def step(state: State, key: Array, points: Point) -> tuple[State, dict[str, Array]]:
        mean, log_sigma, rms = propose(state.params, points)
        noise = jax.random.normal(key, (mean.shape[0], group, channels), mean.dtype)
        actions = mean[:, None] + jnp.exp(log_sigma)[:, None] * noise
        rewards = objective.rewards(points, actions)
        advantages, equal, broken = group_advantages(rewards, eta=eta)
        used = (~(equal | broken)).astype(mean.dtype)
        # The mean over the draws of groups that say something; the others contribute nothing.
        weight = used[:, None] / (jnp.maximum(jnp.sum(used), 1.0) * group)
        old = log_prob(state.params, points, actions)
        params, opt_state = state
        for _ in range(epochs):
            grad, (log_ratio, outside) = jax.grad(surrogate, has_aux=True)(
                params, points, actions, old, advantages, weight
            )
            updates, opt_state = optimiser.update(grad, opt_state, params)
            params = optax.apply_updates(params, updates)
        metrics = {
            "reward": _mean(rewards, jnp.isfinite(rewards)),
            "reward_sd": _mean(jnp.std(rewards, 1), ~broken),
            "mu_rms": jnp.mean(rms),
            "sigma": jnp.mean(jnp.exp(log_sigma)),
            "log_ratio_sd": jnp.std(log_ratio),
            "clip_fraction": jnp.mean(outside, dtype=mean.dtype),
            "groups_equal": jnp.mean(equal, dtype=mean.dtype),
            "groups_broken": jnp.mean(broken, dtype=mean.dtype),
        }
        return State(params, opt_state), metrics

    def act(state: State, key: Array, point: Point) -> Array:
        del key  # the mean action: what the policy has learned, not what it explores
        return policy.apply(state.params, point.features, point.frames)[0]

    return Attacker("grpo", False, init, step, act, Queries(scores=batch * group), Queries())


def _mean(values: Array, where: Array) -> Array:
    """Mean over the entries that count; NaN when none does."""
    return jnp.sum(jnp.where(where, values, 0.0)) / jnp.sum(where, dtype=values.dtype)
