"""The listenable triples (x, x̂, y) of the most, the median and the least hacked utterance."""

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxhack import audio, rows, run
from jaxhack.attack import Setup, Weights, attack, render
from jaxhack.detect import HACK
from jaxhack.inputs import Utterance
from jaxhack.judgement import batches, load, test_key
from jaxhack.types import PyTree


def choose(found: Sequence[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Rows of the attacker that hacks most: its highest, median and lowest gain; fewer where utterances are."""
    trained = [row for row in found if not row["baseline"] and row["status"] == "ok"]
    if not trained:
        return []
    hacks = {row["seed"]: 0 for row in trained}
    for row in trained:
        hacks[row["seed"]] += row["verdict"] == HACK
    worst = max(hacks, key=lambda seed: hacks[seed])
    ranked = sorted((row for row in trained if row["seed"] == worst), key=lambda row: -row["gain"])
    picked = {0: "largest gain", len(ranked) - 1: "smallest gain", len(ranked) // 2: "median gain"}
    return [(picked[i], ranked[i]) for i in sorted(picked)]


def write(setup: Setup, weights: Weights, states: PyTree, test: Sequence[Utterance], folder: Path) -> None:
    """Renders the chosen utterances again, bit for bit as they were judged; writes them and ``examples.json``."""
    out = folder / "examples"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()

    @partial(jax.jit, static_argnums=2)
    def repeat(weights, states, seed, wav, length, keys):
        state = jax.tree.map(lambda x: x[seed], states)
        choose = lambda points: attack(setup, weights, state, seed, points, keys)[None]  # noqa: E731
        return render(setup.space(weights), choose, wav, length).saved

    rate, entries = setup.sample_rate, []
    place = {u.id: (batch, b) for batch in batches(test, rate) for b, (_, u) in enumerate(batch.members)}
    for label, row in choose(rows.read(folder / "rows.parquet")):
        batch, b = place[row["utterance"]]
        loaded = load(batch, rate, test_key(setup))
        saved = np.asarray(repeat(weights, states, row["seed"], loaded.wav, loaded.length, loaded.keys))
        stem = label.replace(" ", "_")
        files = {"x": loaded.wav[b], "reference": saved[0, b], "attacked": saved[1, b]}
        for part, wav in files.items():
            audio.write(out / f"{stem}_{part}.wav", wav[: loaded.length[b]], rate)
        keep = (
            "utterance",
            "attacker",
            "seed",
            "gain",
            "score_input",
            "score_reference",
            "score_attacked",
            "verdict",
        )
        names = {part: f"{stem}_{part}.wav" for part in files}
        entries.append({"label": label} | {k: row[k] for k in keep} | {"files": names})
    run.write_json(out / "examples.json", entries)
