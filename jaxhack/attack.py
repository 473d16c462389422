"""Attacks utterances with trained attackers and judges every output."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxhack import attackers
from jaxhack.measures.panel import evaluate
from jaxhack.objective import heard, listener, objective
from jaxhack.parallel import mapped
from jaxhack.settings import Settings
from jaxhack.spaces import Statistics, latent
from jaxhack.types import Array, Attacker, Codec, Measure, Predictor, PyTree, Space


class Weights(NamedTuple):
    """Every array that a compiled program takes as an argument rather than swallowing as a constant."""

    codec: PyTree
    predictor: PyTree
    statistics: Statistics


class Setup(NamedTuple):
    """What is attacked, through what, and how; no arrays that matter to a compiled program."""

    predictor: Predictor
    codec: Codec
    panel: Sequence[Measure]
    settings: Settings
    queries: int  # forward scores per test utterance, equal for trained attackers and the best of n

    def space(self, weights: Weights) -> Space:
        """The latent space with these weights."""
        codec = self.codec._replace(params=weights.codec)
        return latent(codec, epsilon=self.settings.epsilon, statistics=weights.statistics)

    def attacker(self, weights: Weights) -> Attacker:
        """The attacker to train."""
        s = self.settings
        return attackers.TRAINABLE[s.attacker](self._objective(weights), batch=s.batch, group=s.group, **s.options)

    def baselines(self, weights: Weights) -> tuple[Attacker, Attacker]:
        """A blind random direction, and the best of as many as the trained attackers asked for."""
        target = self._objective(weights)
        return attackers.random(target), attackers.random(target, draws=self.queries)

    def _objective(self, weights: Weights):
        return objective(self.predictor._replace(params=weights.predictor), self.space(weights))


class Arm(NamedTuple):
    """One attacker as a row names it."""

    attacker: str
    seed: int
    baseline: bool
    queries: int  # forward scores per utterance, the training's share included


class Signals(NamedTuple):
    """The attacked waveforms of a batch; signal 0 of A + 1 is x̂, then one per arm."""

    saved: Array  # [A + 1, B, T] as saved
    raw: Array  # [A + 1, B, T] as rendered, zero from `length` on
    sizes: Array  # [A + 1, B] achieved budget


class Judged(NamedTuple):
    """Everything measured on a batch of utterances."""

    score_input: Array  # [B]
    scores: Array  # [A + 1, B] of the signals as saved
    scores_unrounded: Array  # [A + 1, B] clipped to ±1 but not rounded
    sizes: Array  # [A + 1, B]
    clipped: Array  # [A + 1, B] samples beyond ±1
    panel: dict[str, Array]  # measure -> [A + 1, B]


def arms(setup: Setup) -> list[Arm]:
    """The trained attackers, then the two random baselines, in the order of their rows."""
    s = setup.settings
    trained = [Arm(s.attacker, i, False, setup.queries) for i in range(s.seeds)]
    return [*trained, Arm("random", 0, True, 0), Arm("random_best", 0, True, setup.queries)]


def actions(setup: Setup, weights: Weights, states: PyTree, points: PyTree, keys: Array) -> Array:
    """The actions of every arm on a batch: ``points [B], keys [B] -> [A, B, *action]``."""
    act = jax.vmap(setup.attacker(weights).act, (None, 0, 0))
    chosen = [jax.vmap(act, (0, None, None))(states, keys, points)]
    for i, baseline in enumerate(setup.baselines(weights), start=1):
        own = jax.vmap(partial(jax.random.fold_in, data=i))(keys)
        chosen.append(jax.vmap(baseline.act, (None, 0, 0))(None, own, points)[None])
    return jnp.concatenate(chosen)


def render(space: Space, choose: Callable[[PyTree], Array], wav: Array, length: Array) -> Signals:
    """Renders x̂ and the attacks that `choose` makes of the points of a batch ``wav [B, T], length [B]``.

    x̂ is the zero action on the very path of the attacks, so that a budget of 0 gives x̂ to the bit.
    """
    points = mapped(space.encode)(wav, length)
    chosen = choose(points)
    chosen = jnp.concatenate([jnp.zeros_like(chosen[:1]), chosen])

    def one(point, action):
        delta = space.project(point, action)
        raw = space.render(point, delta)[: wav.shape[1]]
        raw = jnp.where(jnp.arange(raw.shape[0]) < point.length, raw, 0.0)
        return heard(raw, point.length), raw, space.size(point, delta)

    return Signals(*jax.vmap(mapped(one), (None, 0))(points, chosen))


def judge(setup: Setup, weights: Weights, states: PyTree, wav: Array, length: Array, keys: Array) -> Judged:
    """Attacks a batch ``wav [B, T], length [B], keys [B]`` with every arm and measures the outcome."""
    signals = render(setup.space(weights), lambda p: actions(setup, weights, states, p, keys), wav, length)
    listen = listener(setup.predictor._replace(params=weights.predictor), setup.codec.sample_rate)
    listen = jax.vmap(mapped(listen), (0, None))
    scores = listen(jnp.concatenate([wav[None], signals.saved]), length)
    return Judged(
        score_input=scores[0],
        scores=scores[1:],
        scores_unrounded=listen(jnp.clip(signals.raw, -1.0, 1.0), length),
        sizes=signals.sizes,
        clipped=jnp.sum(jnp.abs(signals.raw) > 1.0, axis=-1),
        panel=jax.vmap(mapped(partial(evaluate, tuple(setup.panel))), (None, 0, None))(wav, signals.saved, length),
    )
