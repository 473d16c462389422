"""Group Relative Policy Optimisation: a policy that learns which offset raises a score, from forward scores only."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxhack.attackers.geometry import needs_at_least, needs_positive, needs_real_actions
from jaxhack.attackers.random import best_of
from jaxhack.types import Array, Attacker, Objective, Point, PyTree, Queries, Unsuited

LOG_SIGMA_RANGE = (-5.0, 2.0)
LOG_RATIO_LIMIT = 10.0
EQUAL = 1e-5  # rewards that differ by less (standard deviation, MOS) are equal in float32


class State(NamedTuple):
    """A policy in training."""

    params: PyTree
    opt_state: PyTree
    initial: PyTree  # the parameters it started from, where they hold it back; else empty


class Policy(nn.Module):
    """μ_θ(z) and log σ: four 1-D convolutions (width 3) over frames, pooled over the valid ones if not `per_frame`.

    Convolutions are written as matrix products of shifted frames: the same numbers, and ``vmap`` over several
    policies stays a batched product where a convolution would become a grouped one.
    """

    actions: int
    hidden: int
    sigma: float
    normalise_mean: bool
    per_frame: bool = False

    @nn.compact
    def __call__(self, features: Array, frames: Array) -> tuple[Array, Array, Array]:
        """``features [N, F], frames [] -> (μ [M, A], log σ [A], RMS of the raw mean [])``, M = N or 1."""
        valid = (jnp.arange(features.shape[0]) < frames)[:, None]
        x = features
        for layer in range(4):
            x = jnp.where(valid, x, 0.0)
            edge = jnp.zeros_like(x[:1])
            x = jnp.concatenate([jnp.concatenate([edge, x[:-1]]), x, jnp.concatenate([x[1:], edge])], axis=1)
            x = nn.Dense(self.actions if layer == 3 else self.hidden)(x)
            if layer < 3:
                x = nn.gelu(x)
        count = jnp.maximum(frames, 1).astype(x.dtype)
        mean = jnp.where(valid, x, 0.0)
        if not self.per_frame:
            mean = jnp.sum(mean, 0, keepdims=True) / count
        rms = jnp.sqrt(jnp.sum(jnp.square(mean)) / (count if self.per_frame else 1.0) / self.actions + 1e-12)
        if self.normalise_mean:
            mean = mean / rms
        return mean, _log_sigma(self, self.sigma, self.actions), rms


class Constant(nn.Module):
    """The same μ and log σ whatever the utterance."""

    actions: int
    sigma: float
    normalise_mean: bool

    @nn.compact
    def __call__(self, features: Array, frames: Array) -> tuple[Array, Array, Array]:
        """As :class:`Policy`, M = 1."""
        del features, frames
        mean = self.param("mean", nn.initializers.normal(1.0), (1, self.actions))
        rms = jnp.sqrt(jnp.mean(jnp.square(mean)) + 1e-12)
        return mean / rms if self.normalise_mean else mean, _log_sigma(self, self.sigma, self.actions), rms


def _log_sigma(policy: nn.Module, sigma: float, actions: int) -> Array:
    log_sigma = policy.param("log_sigma", nn.initializers.constant(jnp.log(sigma)), (actions,))
    return jnp.clip(log_sigma, *LOG_SIGMA_RANGE)


def group_advantages(rewards: Array, *, eta: float = 1e-4, scale_rewards: bool = True) -> tuple[Array, Array, Array]:
    r"""Group-normalised advantages :math:`A_{ij} = (r_{ij} - \bar r_i) / (\mathrm{std}_j r_i + \eta)`.

    Args:
      rewards: ``[..., G]`` scores (MOS), one group per utterance.
      eta: added to the standard deviation (population, two-pass).
      scale_rewards: False leaves the division out, as Dr. GRPO does (arXiv 2503.20783): dividing gives utterances
        whose scores hardly move the weight of those that move much.

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
    advantages = centred / (std + eta)[..., None] if scale_rewards else centred
    return jnp.where((equal | broken)[..., None], 0.0, advantages), equal, broken


def surrogate(log_ratio: Array, advantages: Array, weight: Array, *, clip: float) -> tuple[Array, Array]:
    r"""The clipped surrogate, to be minimised: :math:`-\sum w \min(\rho A, \mathrm{clip}(\rho, 1 - c, 1 + c) A)`.

    Args:
      log_ratio: :math:`\log \rho`, new over old, of any shape.
      advantages: A, of a shape that broadcasts to it.
      weight: w, too.
      clip: c, half-width of the trust region.

    Returns:
      The sum ``[]``, and which ratios lie outside.
    """
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - clip, 1 + clip)
    return -jnp.sum(weight * jnp.minimum(ratio * advantages, clipped * advantages)), ratio != clipped


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
    scale_rewards: bool = True,
    kl: float = 0.0,
    per_frame: bool = False,
    universal: bool = False,
    draws: int = 1,
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
      scale_rewards: see :func:`group_advantages`.
      kl: weight of the divergence from the initial policy, as the estimator u − log u − 1 with
        u = π_0 / π_θ (DeepSeekMath); 0 is none.
      per_frame: an action for each frame, and a ratio too, as language models have them for each token; the surrogate
        is their mean. Only in spaces whose actions have frames.
      universal: one Gaussian for every utterance, which looks at none of them.
      draws: actions tried at test time. 1 is the policy's mean, which asks nothing of the predictor; n > 1 is the
        best by score of the mean and n − 1 draws.

    Returns:
      An :class:`~jaxhack.types.Attacker`. ``step`` reports ``reward``, ``reward_sd`` (inside a group), ``mu_rms``,
      ``sigma``, ``log_ratio_sd``, ``clip_fraction``, the shares ``groups_equal`` and ``groups_broken``, and ``kl``
      where it has a weight.

    Raises:
      ValueError: if `group` < 2 (a group of one has no advantage) or another option is out of range.

    Source: "How Hackable Is Your Speech Quality Metric?", section III; DeepSeekMath (arXiv 2402.03300).
    """
    name, space = "universal-grpo" if universal else "grpo", objective.space
    if group < 2:
        raise ValueError(f"GRPO needs a group of at least 2 draws per utterance, got {group}: one has no advantage.")
    needs_real_actions(space, name)
    needs_positive(name, batch=batch, epochs=epochs, learning_rate=learning_rate, sigma=sigma)
    needs_at_least(name, 0.0, kl=kl)
    needs_at_least(name, 1, draws=draws)
    (channels,) = space.action_shape
    # Actions have frames in latents, whose features are their own channels; samples have none.
    if per_frame and (universal or channels != space.feature_size):
        reason = "a universal one has none" if universal else f"those of {space.name} have none"
        raise Unsuited(f"per_frame needs actions that have frames; {reason}.")
    policy = (
        Constant(channels, sigma, normalise_mean)
        if universal
        else Policy(channels, hidden, sigma, normalise_mean, per_frame)
    )
    optimiser = optax.adam(learning_rate)

    def propose(params: PyTree, points: Point) -> tuple[Array, Array, Array]:
        made: Any = jax.vmap(policy.apply, in_axes=(None, 0, 0))(params, points.features, points.frames)
        return made

    def init(key: Array) -> State:
        params = policy.init(key, jnp.zeros((4, space.feature_size)), jnp.int32(4))
        return State(params, optimiser.init(params), params if kl else ())

    def log_ratio(params: PyTree, others: Array, points: Point, actions: Array) -> Array:
        """Of draws ``[B, G, M, A]``, against their log-probabilities `others`: ``[B, G, M]``."""
        change = log_prob(*propose(params, points)[:2], actions) - others
        return jnp.clip(change, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)

    def step(state: State, key: Array, points: Point) -> tuple[State, dict[str, Array]]:
        mean, log_sigma, rms = propose(state.params, points)
        noise = jax.random.normal(key, (mean.shape[0], group, *mean.shape[1:]), mean.dtype)
        actions = mean[:, None] + jnp.exp(log_sigma)[:, None, None] * noise
        rewards = objective.rewards(points, actions if per_frame else actions[:, :, 0])
        advantages, equal, broken = group_advantages(rewards, eta=eta, scale_rewards=scale_rewards)
        used = (~(equal | broken)).astype(mean.dtype)
        # [B, 1, M]: the frames of an utterance share its weight, those of its padding have none.
        reach = points.frames if per_frame else jnp.ones_like(points.frames)
        counted = jnp.arange(mean.shape[1]) < reach[:, None, None]
        share = counted.astype(mean.dtype)
        share = share / jnp.maximum(jnp.sum(share, 2, keepdims=True), 1.0)
        # The mean over the draws of groups that say something; the others contribute nothing.
        weight = used[:, None, None] / (jnp.maximum(jnp.sum(used), 1.0) * group) * share
        old = log_prob(mean, log_sigma, actions)
        initial = log_prob(*propose(state.initial, points)[:2], actions) if kl else old

        def loss(params: PyTree) -> tuple[Array, tuple[Array, Array, Array]]:
            change = log_ratio(params, old, points, actions)
            value, outside = surrogate(change, advantages[..., None], weight, clip=clip)
            if not kl:
                return value, (change, outside, jnp.zeros_like(value))
            back = -log_ratio(params, initial, points, actions)
            divergence = jnp.sum((jnp.exp(back) - back - 1.0) * share) / (len(rewards) * group)
            return value + kl * divergence, (change, outside, divergence)

        params, opt_state = state.params, state.opt_state
        for _ in range(epochs):
            grad, (change, outside, divergence) = jax.grad(loss, has_aux=True)(params)
            updates, opt_state = optimiser.update(grad, opt_state, params)
            params = optax.apply_updates(params, updates)
        counted = jnp.broadcast_to(counted, change.shape)
        metrics = {
            "reward": _mean(rewards, jnp.isfinite(rewards)),
            "reward_sd": _mean(jnp.std(rewards, 1), ~broken),
            "mu_rms": jnp.mean(rms),
            "sigma": jnp.mean(jnp.exp(log_sigma)),
            "log_ratio_sd": jnp.std(change, where=counted),
            "clip_fraction": jnp.mean(outside, dtype=mean.dtype, where=counted),
            "groups_equal": jnp.mean(equal, dtype=mean.dtype),
            "groups_broken": jnp.mean(broken, dtype=mean.dtype),
        }
        return State(params, opt_state, state.initial), metrics | ({"kl": divergence} if kl else {})

    def act(state: State, key: Array, point: Point) -> Array:
        made: Any = policy.apply(state.params, point.features, point.frames)
        mean, log_sigma, _ = made

        def draw(number: Array) -> Array:
            noise = jax.random.normal(jax.random.fold_in(key, number), mean.shape, mean.dtype)
            action = mean + jnp.where(number > 0, jnp.exp(log_sigma) * noise, 0.0)
            return action if per_frame else action[0]

        return best_of(objective, point, draws, draw) if draws > 1 else draw(jnp.int32(0))

    asked = Queries(scores=draws if draws > 1 else 0)
    return Attacker(name, False, init, step, act, Queries(scores=batch * group), asked)


def log_prob(mean: Array, log_sigma: Array, actions: Array) -> Array:
    """Log-density ``[B, G, M]``, up to a constant, of draws ``[B, G, M, A]``; μ ``[B, M, A]``, log σ ``[B, A]``."""
    mean, log_sigma = mean[:, None], log_sigma[:, None, None]
    return jnp.sum(-0.5 * jnp.square((actions - mean) * jnp.exp(-log_sigma)) - log_sigma, -1)


def _mean(values: Array, where: Array) -> Array:
    """Mean over the entries that count; NaN when none does."""
    return jnp.sum(jnp.where(where, values, 0.0)) / jnp.sum(where, dtype=values.dtype)
