"""Attacks utterances with trained attackers and judges every output."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxhack import attackers, spaces
from jaxhack.measures.panel import evaluate
from jaxhack.objective import heard, listener, objective
from jaxhack.parallel import mapped
from jaxhack.settings import Settings
from jaxhack.types import (
    Array,
    Attacker,
    Codec,
    Measure,
    Objective,
    Point,
    Predictor,
    PyTree,
    Queries,
    Space,
    Unsuited,
)


class Weights(NamedTuple):
    """Every array that a compiled program takes as an argument rather than swallowing as a constant."""

    codec: PyTree
    predictor: PyTree
    statistics: spaces.Statistics | None  # of the codec's latent; None: each utterance's own, or no codec
    panel: tuple[PyTree, ...] = ()  # of each of its measures, in order
    target: PyTree = None  # of the predictor that is attacked, where another one judges


class Setup(NamedTuple):
    """What is attacked, through what, and how; no arrays that matter to a compiled program."""

    predictor: Predictor  # whose scores count
    codec: Codec | None  # of the spaces that have one
    sample_rate: int  # Hz, of the space
    panel: Sequence[Measure]
    settings: Settings
    test: int  # utterances over which an attacker's training is shared out, in counts of queries
    target: Predictor | None = None  # what the attackers play against, where that is another predictor
    best_of: bool = True  # whether the best of as many random actions as the attackers asked for is a control too

    @property
    def trained(self) -> bool:
        """Whether attackers learn before they meet the test set."""
        return attackers.KINDS[self.settings.attacker].trained

    def space(self, weights: Weights) -> Space:
        """The space with these weights."""
        s = self.settings
        kind = spaces.KINDS[s.space]
        if self.codec is None:
            return kind.make(self.sample_rate, epsilon=s.epsilon)
        codec = self.codec._replace(params=weights.codec)
        return kind.make(codec, epsilon=s.epsilon, statistics=weights.statistics)

    def attacker(self, weights: Weights) -> Attacker:
        """The attacker, to be trained where it is of that kind."""
        s = self.settings
        kind = attackers.KINDS[s.attacker]
        return kind.make(self.objective(weights), **{name: getattr(s, name) for name in kind.sizes}, **s.options)

    def baselines(self, weights: Weights) -> list[Attacker]:
        """A blind random action, and the best of as many as the attackers asked for."""
        target, asked = self.objective(weights), self.queries()
        draws = [1, *([max(1, asked.scores + asked.gradients)] if self.best_of else [])]
        return [attackers.random(target, draws=count) for count in draws]

    def queries(self) -> Queries:
        """What one attacker asks of the predictor for a test utterance, that one's share of the training included."""
        made = self.attacker(self.untrained())
        steps = self.settings.steps if self.trained else 0
        shares = (math.ceil(steps * number / self.test) for number in made.per_step)
        return Queries(*(a + b for a, b in zip(shares, made.per_act, strict=True)))

    def untrained(self) -> Weights:
        """The weights of codec, predictor, panel and target, without statistics."""
        codec, target = (None if held is None else held.params for held in (self.codec, self.target))
        panel = tuple(measure.params for measure in self.panel)
        return Weights(codec, self.predictor.params, None, panel, target)

    def objective(self, weights: Weights) -> Objective:
        """What the attackers play against."""
        if self.target is None:
            return objective(self.predictor._replace(params=weights.predictor), self.space(weights))
        return objective(self.target._replace(params=weights.target), self.space(weights))

    def named(self, attacker: str) -> str:
        """An attacker as rows name it: ``grpo``, or ``grpo@nisqa`` where it attacked another predictor."""
        return attacker if self.target is None else f"{attacker}@{self.target.name}"


class Arm(NamedTuple):
    """One attacker as a row names it."""

    attacker: str
    seed: int
    baseline: bool
    queries: Queries  # per utterance, the training's share included


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
    panel: dict[str, Array]  # measure -> [A + 1, B], those of the host left out
    saved: Array | None  # [A + 1, B, T] the signals as saved, where somebody asks for them
    score_repeat: Array  # [B] of x̂ as saved, asked a second time
    slope: Array | None  # [B] RMS of the gradient at x̂ that the attackers see; None: they ask for none


def refusal(setup: Setup) -> str | None:
    """Why this attacker cannot work on this predictor in this space, None if it can; nothing is computed."""
    weights = setup.untrained()

    def trial(key):
        space, attacker = setup.space(weights), setup.attacker(weights)
        point = space.encode(jnp.zeros(setup.sample_rate), jnp.int32(setup.sample_rate))
        state = attacker.init(key)
        if setup.trained:
            state, _ = attacker.step(state, key, jax.tree.map(lambda x: x[None], point))
        return attacker.act(state, key, point)

    try:
        jax.eval_shape(trial, jax.random.key(0))
    except Unsuited as error:
        return str(error)
    return None


def arms(setup: Setup) -> list[Arm]:
    """The attackers, then the two random baselines, in the order of their rows."""
    s, asked = setup.settings, setup.queries()
    mine = [Arm(setup.named(s.attacker), i, False, asked) for i in range(s.seeds)]
    blind, *best = (baseline.per_act for baseline in setup.baselines(setup.untrained()))
    return [
        *mine,
        Arm("random", 0, True, blind),
        *(Arm(setup.named("random_best"), 0, True, asked) for asked in best),
    ]


def attack(setup: Setup, weights: Weights, state: PyTree, seed: Array, points: Point, keys: Array) -> Array:
    """What attacker `seed` does to a batch: ``points [B], keys [B] -> deltas [B, ...]``."""
    space, attacker = setup.space(weights), setup.attacker(weights)
    keys = jax.vmap(lambda key: jax.random.fold_in(jax.random.fold_in(key, 0), seed))(keys)
    return jax.vmap(lambda key, point: space.project(point, attacker.act(state, key, point)))(keys, points)


def by_attackers(setup: Setup, weights: Weights, states: PyTree, points: Point, keys: Array) -> Array:
    """What every attacker does to a batch, no baseline: ``points [B], keys [B] -> [k, B, ...]``."""
    seeds = jnp.arange(setup.settings.seeds)
    return jax.vmap(partial(attack, setup, weights), (0, 0, None, None))(states, seeds, points, keys)


def deltas(setup: Setup, weights: Weights, states: PyTree, points: Point, keys: Array) -> Array:
    """What every arm does to a batch: ``points [B], keys [B] -> [A, B, ...]``."""
    space, chosen = setup.space(weights), [by_attackers(setup, weights, states, points, keys)]
    for i, baseline in enumerate(setup.baselines(weights), start=1):

        def act(key, point, i=i, baseline=baseline):
            return space.project(point, baseline.act(None, jax.random.fold_in(key, i), point))

        chosen.append(jax.vmap(act)(keys, points)[None])
    return jnp.concatenate(chosen)


def render(space: Space, choose: Callable[[Point], Array], wav: Array, length: Array) -> Signals:
    """Renders x̂ and what `choose` makes of the points of a batch ``wav [B, T], length [B]``: deltas ``[A, B, ...]``.

    x̂ is the zero perturbation on the very path of the attacks, so that a budget of 0 gives x̂ to the bit.
    """
    points = mapped(space.encode)(wav, length)
    chosen = choose(points)
    chosen = jnp.concatenate([jnp.zeros_like(chosen[:1]), chosen])

    def one(point, delta):
        raw = space.render(point, delta)[: wav.shape[1]]
        raw = jnp.where(jnp.arange(raw.shape[0]) < point.length, raw, 0.0)
        return heard(raw, point.length), raw, space.size(point, delta)

    return Signals(*jax.vmap(mapped(one), (None, 0))(points, chosen))


def judge(
    setup: Setup,
    weights: Weights,
    states: PyTree,
    wav: Array,
    length: Array,
    keys: Array,
    *,
    signals_too: bool = False,
) -> Judged:
    """Attacks a batch ``wav [B, T], length [B], keys [B]`` with every arm and measures the outcome."""
    space = setup.space(weights)
    signals = render(space, lambda p: deltas(setup, weights, states, p, keys), wav, length)
    listen = listener(setup.predictor._replace(params=weights.predictor), setup.sample_rate)
    listen = jax.vmap(mapped(listen), (0, None))
    again = signals.saved[:1]
    scores = listen(jnp.concatenate([wav[None], signals.saved, again]), length)
    panel = tuple(m._replace(params=params) for m, params in zip(setup.panel, weights.panel, strict=True))
    return Judged(
        score_input=scores[0],
        scores=scores[1:-1],
        scores_unrounded=listen(jnp.clip(signals.raw, -1.0, 1.0), length),
        sizes=signals.sizes,
        clipped=jnp.sum(jnp.abs(signals.raw) > 1.0, axis=-1),
        panel=jax.vmap(mapped(partial(evaluate, panel)), (None, 0, None))(wav, signals.saved, length),
        saved=signals.saved if signals_too or any(measure.host for measure in panel) else None,
        score_repeat=scores[-1],
        slope=slope(setup.objective(weights), wav, length) if setup.queries().gradients else None,
    )


def slope(target: Objective, wav: Array, length: Array) -> Array:
    """RMS of the score's gradient by the perturbation at x̂: ``wav [B, T], length [B] -> [B]``; NaN: not finite."""

    space = target.space
    points = mapped(space.encode)(wav, length)
    none = jax.vmap(lambda point: space.expand(point, jnp.zeros(space.action_shape)))(points)
    by_action = target.gradients(points, none[:, None])[1][:, 0]
    return jnp.sqrt(jnp.mean(jnp.square(by_action), axis=tuple(range(1, by_action.ndim))))
