"""Trains `mini`: spectra first, then against critics, then with its quantiser, encoder and codebooks held.

Resumable: repeat the command after any interruption. ``mini.msgpack`` in the work folder holds the weights so far.
"""

import argparse
import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import librosa
import numpy as np
import optax
from flax import serialization
from scipy.cluster.vq import kmeans2

from experiments.train_mini_codec.data import RATE, Speech, prepare
from jaxhack.types import Array, PyTree
from ports import mini

NOISE = 0.25  # largest standard deviation of the noise on a latent of about unit variance
FLOOR = 1e-4  # magnitude below which a spectrum's details are not heard
ADVERSARIAL, MATCHING = 0.3, 0.9  # weights of what critics say
AVERAGE = 0.999  # of the exported weights, step by step


class Size(NamedTuple):
    batch: int = 8
    critics: tuple[int, ...] = (256, 512, 1024)  # windows that critics look through
    judged: int = 4  # waveforms of a batch that critics judge, too: they cost more than the codec
    samples: int = 48 * mini.HOP
    adversary: int = 1500  # step from which critics judge
    fit: int = 6500  # step at which codebooks are made and the encoder is held
    last: int = 12000
    frames: int = 40000  # that codebooks are made from
    every: int = 250  # steps between checkpoints


FULL = Size()
TINY = Size(batch=2, critics=(256,), judged=1, samples=8 * mini.HOP, adversary=0, fit=2, last=4, frames=200, every=2)


class State(NamedTuple):
    step: Array
    params: PyTree
    averaged: PyTree
    critics: PyTree
    optimisers: tuple[PyTree, PyTree]


# --- losses ---


def spectrum(wav: Array, window: int, hop: int) -> Array:
    """``[T] -> [frames, bins]`` complex, Hann window."""
    blocks = wav[: wav.shape[0] // hop * hop].reshape(-1, hop)
    taps = window // hop
    count = blocks.shape[0] - taps + 1
    frames = jnp.concatenate([blocks[i : i + count] for i in range(taps)], axis=1)
    return jnp.fft.rfft(frames * np.hanning(window).astype(np.float32))


def magnitude(spectrum: Array) -> Array:
    """With a gradient at zero too."""
    return jnp.sqrt(jnp.square(spectrum.real) + jnp.square(spectrum.imag) + FLOOR**2)


def reconstruction(y: Array, x: Array) -> Array:
    """How far a waveform ``[T]`` is from another: mel, magnitude, low-frequency phase, samples."""
    loss = jnp.mean(jnp.abs(y - x))
    for window, hop, mels in ((2048, 512, 128), (1024, 256, 80), (512, 128, 40), (256, 64, 20)):
        bank = librosa.filters.mel(sr=RATE, n_fft=window, n_mels=mels).T.astype(np.float32)
        a, b = spectrum(y, window, hop), spectrum(x, window, hop)
        a_size, b_size = magnitude(a), magnitude(b)
        loss += 0.5 * jnp.mean(jnp.abs(jnp.log(a_size @ bank + FLOOR) - jnp.log(b_size @ bank + FLOOR)))
        a_small, b_small = a_size**0.3, b_size**0.3
        loss += 0.5 * jnp.mean(jnp.abs(a_small - b_small))
        low = window * 1500 // RATE
        phase = (a * (a_small / a_size))[:, :low] - (b * (b_small / b_size))[:, :low]
        loss += 0.1 * jnp.mean(magnitude(phase))
    return loss


# --- critics: strided convolutions over spectrograms, as products over neighbouring bins and frames ---


def _near(x: Array, frames: int, bins: int, stride: int) -> Array:
    """``[F, B, C] -> [F, B / stride, frames · bins · C]``: what surrounds each place."""
    x = jnp.pad(x, ((frames // 2, frames // 2), (0, -x.shape[1] % stride), (0, 0)))
    x = x.reshape(x.shape[0], x.shape[1] // stride, stride * x.shape[2])
    taps = bins // stride
    x = jnp.pad(x, ((0, 0), (taps // 2, (taps - 1) // 2), (0, 0)))
    count = x.shape[1] - taps + 1
    x = jnp.concatenate([x[:, i : i + count] for i in range(taps)], axis=2)
    count = x.shape[0] - frames + 1
    return jnp.concatenate([x[i : i + count] for i in range(frames)], axis=2)


class Critic(nn.Module):
    """Waveform ``[T]`` -> one score per patch of its spectrogram, and the features before it."""

    window: int

    @nn.compact
    def __call__(self, wav: Array) -> tuple[Array, list[Array]]:
        found = spectrum(wav, self.window, self.window // 4)
        size = magnitude(found)
        x = jnp.stack([size**0.3, found.real * size**-0.7, found.imag * size**-0.7], axis=-1)[:, 1:]
        features = []
        for width, bins, stride in ((24, 8, 4), (48, 8, 4), (48, 3, 1)):
            x = nn.Dense(width)(_near(x, 3, bins, stride))
            x = nn.leaky_relu(x + self.param(f"place_{len(features)}", nn.initializers.zeros, x.shape[1:]), 0.1)
            features.append(x)
        return nn.Dense(1)(x), features


def judged(critics: PyTree, wav: Array, size: Size) -> list[tuple[Array, list[Array]]]:
    """What every critic says of a waveform, and its features."""
    return [Critic(w).apply({"params": p}, wav) for w, p in zip(size.critics, critics, strict=True)]


# --- steps ---


def latents(params: PyTree, wav: Array, key: Array, quantiser: Array) -> Array:
    """The latent ``[N, 64]`` of a waveform, as disturbed as the decoder must bear: noisy, or quantised if so told."""
    z = mini.encode(params, wav)
    kind, amount, noise, stage = jax.random.split(key, 4)
    size = NOISE * jax.random.uniform(amount) * jax.random.bernoulli(kind, 0.5)
    disturbed = z + size * jax.random.normal(noise, z.shape)
    heard = mini.quantised(params["codebooks"], z)[jax.random.randint(stage, (), mini.STAGES[0] - 1, mini.STAGES[-1])]
    return jnp.where(quantiser & jax.random.bernoulli(jax.random.fold_in(kind, 1), 0.5), heard, disturbed)


def generator_loss(
    params: PyTree, critics: PyTree, wavs: Array, keys: Array, size: Size, adversary: bool, quantiser: Array
) -> tuple[Array, tuple[dict[str, Array], Array]]:
    """The loss of codec parameters; what it is made of, and the waveforms that critics are to judge."""

    def one(wav: Array, key: Array) -> tuple[Array, dict[str, Array]]:
        z = latents(params, wav, key, quantiser)
        y, learned = mini.decode(params, z), z[:, mini.LINEAR :]
        spread = jnp.square(jnp.log(jnp.var(learned, axis=0) + 1e-3)) + jnp.square(jnp.mean(learned, axis=0))
        return y, {"reconstruction": reconstruction(y, wav), "spread": jnp.mean(spread)}

    def faced(fake: Array, real: Array) -> dict[str, Array]:
        pairs = list(zip(judged(critics, fake, size), judged(critics, real, size), strict=True))
        differences = [
            jnp.mean(jnp.abs(a - b)) / (jnp.mean(jnp.abs(b)) + 1e-3)
            for (_, ours), (_, theirs) in pairs
            for a, b in zip(ours, theirs, strict=True)
        ]
        adversarial = sum(jnp.mean(nn.relu(1 - score)) for (score, _), _ in pairs) / len(pairs)
        return {"adversarial": adversarial, "matching": sum(differences) / len(differences)}

    ys, losses = jax.vmap(one)(wavs, keys)
    if adversary:
        losses |= jax.vmap(faced)(ys[: size.judged], wavs[: size.judged])
    means = {name: jnp.mean(value) for name, value in losses.items()}
    weights = {"reconstruction": 1.0, "spread": 0.002, "adversarial": ADVERSARIAL, "matching": MATCHING}
    return sum(weights[name] * value for name, value in means.items()), (means, ys[: size.judged])


def critic_loss(critics: PyTree, fakes: Array, wavs: Array, size: Size) -> Array:
    """The hinge loss of critic parameters on what the codec made, and on what it made it of."""

    def one(fake: Array, real: Array) -> Array:
        pairs = list(zip(judged(critics, fake, size), judged(critics, real, size), strict=True))
        return sum(jnp.mean(nn.relu(1 + a)) + jnp.mean(nn.relu(1 - b)) for (a, _), (b, _) in pairs) / len(pairs)

    return jnp.mean(jax.vmap(one)(fakes, wavs))


def optimisers(size: Size) -> tuple[optax.GradientTransformation, optax.GradientTransformation]:
    rate = optax.warmup_cosine_decay_schedule(0.0, 1e-3, min(200, size.last // 2), size.last, 5e-5)

    def adam(rate: optax.Schedule) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, b1=0.8, b2=0.99, weight_decay=1e-4))

    return adam(rate), adam(lambda step: 0.7 * rate(step + 200))


@partial(jax.jit, static_argnames=("size", "adversary"))
def train_step(state: State, wavs: Array, *, size: Size, adversary: bool) -> tuple[State, Any]:
    """One step of codec and critics on waveforms ``[B, T]``."""
    ours, theirs = optimisers(size)
    quantiser = state.step >= size.fit
    keys = jax.random.split(jax.random.fold_in(jax.random.key(1), state.step), wavs.shape[0])
    slope = jax.grad(generator_loss, has_aux=True)
    gradient, (metrics, fakes) = slope(state.params, state.critics, wavs, keys, size, adversary, quantiser)
    move, our_state = ours.update(_free(gradient, quantiser), state.optimisers[0], state.params)
    move = _free(move, quantiser)
    critics, their_state = state.critics, state.optimisers[1]
    if adversary:
        metrics["critics"], gradient = jax.value_and_grad(critic_loss)(critics, fakes, wavs[: size.judged], size)
        their_move, their_state = theirs.update(gradient, their_state, critics)
        critics = optax.apply_updates(critics, their_move)
    params = optax.apply_updates(state.params, move)
    weight = jnp.minimum(AVERAGE, (state.step + 1) / (state.step + 10))
    averaged = jax.tree.map(lambda a, b: weight * a + (1 - weight) * b, state.averaged, params)
    return State(state.step + 1, params, averaged, critics, (our_state, their_state)), metrics


def _free(tree: PyTree, quantiser: Array) -> PyTree:
    """Zero where parameters are held: codebooks, the MDCT's scale, and from the quantiser's fit on the encoder."""

    def one(path: Any, leaf: Array) -> Array:
        names = [entry.key for entry in path]
        held = names[0] == "codebooks" or names[-1] == "deviation" or (names[0] == "encoder") & quantiser
        return jnp.where(held, 0.0, leaf)

    return jax.tree_util.tree_map_with_path(one, tree)


def fresh(speech: Speech, size: Size) -> State:
    """The state before the first step; MDCT channels get unit variance on speech."""
    keys = jax.random.split(jax.random.key(0), 2 + len(size.critics))
    wavs = jnp.asarray(speech.batch(np.random.default_rng(0), 64, size.samples))
    params = {
        "encoder": jax.jit(mini.Encoder().init)(keys[0], wavs[0])["params"],
        "decoder": jax.jit(mini.Decoder().init)(keys[1], jnp.zeros((8, mini.CHANNELS)))["params"],
        "codebooks": jnp.zeros((mini.STAGES[-1], mini.ENTRIES, mini.CHANNELS)),
    }
    z = jax.jit(jax.vmap(partial(mini.encode, params)))(wavs)
    deviation = jnp.std(z[..., : mini.LINEAR], axis=(0, 1))
    for part in ("encoder", "decoder"):
        params[part]["deviation"] = deviation
    critics = [jax.jit(Critic(w).init)(k, wavs[0])["params"] for w, k in zip(size.critics, keys[2:], strict=True)]
    ours, theirs = optimisers(size)
    states = (ours.init(params), theirs.init(critics))
    return State(jnp.int32(0), params, jax.tree.map(jnp.copy, params), critics, states)


def fitted(params: PyTree, speech: Speech, size: Size) -> Array:
    """Codebooks ``[64, 64, 64]``: k-means, each stage of what the ones before it left over."""
    encode = jax.jit(jax.vmap(partial(mini.encode, params)))
    rng = np.random.default_rng(2)
    rest = np.zeros((0, mini.CHANNELS), np.float32)
    while len(rest) < size.frames:
        z = encode(speech.batch(rng, size.batch, size.samples))
        rest = np.concatenate([rest, np.asarray(z).reshape(-1, mini.CHANNELS)])
    books = []
    for stage in range(mini.STAGES[-1]):
        book, nearest = kmeans2(rest, mini.ENTRIES, iter=12, minit="points", seed=stage, missing="warn")
        books.append(book)
        rest = rest - book[nearest]
        print(f"stage {stage + 1}: {np.mean(np.square(rest)):.4f} of the variance left", flush=True)
    return jnp.asarray(np.stack(books), jnp.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="Folder for speech, checkpoints and weights.")
    parser.add_argument("--tiny", action="store_true", help="A few small steps, to see it run.")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    prepare(options.work)
    train(options.work, TINY if options.tiny else FULL)


def train(work: Path, size: Size, until: int | None = None) -> PyTree:
    """Trains to the last step or `until`, from the checkpoint in `work` if there is one; the averaged parameters."""
    speech = Speech(work)
    state = fresh(speech, size)
    if (work / "checkpoint.msgpack").exists():
        try:
            state = serialization.from_bytes(state, (work / "checkpoint.msgpack").read_bytes())
        except ValueError as error:
            raise SystemExit(
                f"The checkpoint in {work} is of another size, or damaged: choose a new --work."
            ) from error
        state = jax.tree.map(jnp.asarray, state)
    began = time.monotonic()
    for step in range(int(state.step), until or size.last):
        if step == size.fit:
            books = fitted(state.averaged, speech, size)
            params = state.averaged | {"codebooks": books}  # the encoder is held from here on, at its average
            state = state._replace(params=params, averaged=jax.tree.map(jnp.copy, params))
        wavs = speech.batch(np.random.default_rng([3, step]), size.batch, size.samples)
        state, metrics = train_step(state, wavs, size=size, adversary=step >= size.adversary)
        if (step + 1) % size.every == 0:
            line = {"step": step + 1, "seconds": round(time.monotonic() - began, 1)}
            line |= {name: round(float(value), 4) for name, value in metrics.items()}
            print(json.dumps(line), flush=True)
            if not all(np.isfinite(value) for value in line.values()):
                raise SystemExit(f"The training diverged before step {step + 1}; the last checkpoint is kept.")
            _replace(work / "mini.msgpack", mini.pack(state.averaged))
            _replace(work / "checkpoint.msgpack", serialization.to_bytes(state))
    return state.averaged


def _replace(path: Path, contents: bytes) -> None:
    """Written in one move: an interruption leaves the old file or the new one."""
    part = path.with_suffix(".part")
    part.write_bytes(contents)
    os.replace(part, path)


if __name__ == "__main__":
    main()
