"""Agreement of predictors with people: scores against mean opinion scores, by utterance and by system."""

import csv
import io
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from jaxhack import data, inputs, registry, run
from jaxhack.data import Rated
from jaxhack.report import page
from jaxhack.report.terminal import bare_table
from jaxhack.scoring import score_files
from jaxhack.stats import agreement as statistics
from jaxhack.types import Predictor

LEVEL = 0.95
RESAMPLES = 2000
FEW = 20  # units of a bootstrap below which its intervals are too short to be relied on
LEVELS = ("utterance", "system")
RESULT, TABLE = "agreement.json", "agreement.csv"
HEADS = {"srcc": "SRCC", "lcc": "LCC", "ktau": "Kendall τ", "mse": "MSE"}

Row = dict[str, Any]


def agree(
    paths: inputs.Paths,
    *,
    predictors: registry.Named | Sequence[registry.Named] = (),
    scores: inputs.Paths = (),
    models: str | os.PathLike[str] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Any]:
    """How well predictors agree with people's ratings.

    Args:
      paths: lists of recordings (.csv, .jsonl) with a column ``mos``, empty where a recording is not rated, and
        where the set has systems a column ``system``.
      predictors: as :func:`jaxhack.predictor` takes them; the first is what the others are compared with.
      scores: files of ``jaxhack score`` on the same recordings, each taken as a predictor of the file's name.
      models: a folder of weight files, looked in first.
      resamples: of the bootstrap.
      seed: of the bootstrap.

    Returns:
      What :func:`summarise` returns.

    Raises:
      ValueError: no ratings, no predictor, two of one name, or scores of other recordings.
    """
    rated = read(paths)
    found, made = gather(rated, predictors=predictors, scores=scores, models=models)
    return summarise(rated, {name: values(rows) for name, rows in found.items()}, made, resamples, seed)


def read(paths: inputs.Paths) -> list[Rated]:
    """The recordings of lists with a column ``mos``, and the test splits of sets; see :func:`agree`.

    Raises:
      ValueError: a list is broken, a rating is no number, or nothing is rated.
    """
    named = [os.fspath(path) for path in inputs.several(paths)]
    sets = [name for name in named if name.partition(":")[0] in data.KINDS]
    lists = [name for name in named if name not in sets]
    found = [one for path in sets for one in data.read(path) if one.split == "test"]
    found += [_rated(utterance) for utterance in inputs.collect(lists)] if lists else []
    if all(one.mos is None for one in found):
        columns = dict.fromkeys(name for one in found for name in one.meta)
        raise ValueError(
            f"None of {len(found)} recordings is rated: expected a list (.csv, .jsonl) with a column mos; the "
            f"columns are {', '.join(columns) or 'none'}."
        )
    return found


def gather(
    rated: Sequence[Rated],
    *,
    predictors: registry.Named | Sequence[registry.Named] = (),
    scores: inputs.Paths = (),
    models: str | os.PathLike[str] | None = None,
    observe: Callable[[Row], None] = lambda row: None,
) -> tuple[dict[str, list[Row]], list[Predictor]]:
    """Scores of the rated recordings: by predictor a row each, with ``score``, ``status`` and ``reason``.

    What is not rated is not scored. Arguments and errors as of :func:`agree`.

    Args:
      observe: is handed every row as it is made.

    Returns:
      Rows in the order of `rated` by name, and the predictors that were asked.
    """
    made = [registry.predictor(name, models=models) for name in inputs.several(predictors)]
    scores = inputs.several(scores)
    stored = {Path(file).stem: file for file in scores}
    names = [predictor.name for predictor in made] + [Path(file).stem for file in scores]
    if not names:
        raise ValueError("Nothing to compare with the ratings: name a predictor, or a file of scores.")
    registry.distinct("predictor", names)
    read_back = {name: _stored(file, rated) for name, file in stored.items()}  # refused before anything is computed
    asked = data.utterances([one for one in rated if one.mos is not None]) if made else []
    found: dict[str, list[Row]] = {}
    for predictor in made:
        rows: dict[str, Row] = {}
        for row in score_files(predictor, asked):
            rows[row["file"]] = row
            observe(row)
        found[predictor.name] = [rows.get(one.id, _UNRATED) for one in rated]
    return found | read_back, made


def values(rows: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Scores of rows ``[N]`` float64, NaN where there is none."""
    return np.array([row["score"] for row in rows], np.float64)


def summarise(
    rated: Sequence[Rated],
    scores: Mapping[str, Sequence[float] | np.ndarray],
    predictors: Sequence[Predictor] = (),
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Any]:
    """Correlations (Spearman SRCC, Pearson LCC, Kendall τ-b) and mean squared error of scores and MOS.

    All predictors are judged on the same utterances: those that are rated and that every one of them scores. The
    score of a system, and its MOS, is the mean over its utterances; systems count alike. Errors are of raw scores:
    nothing is mapped to the scale of the ratings.

    Intervals come from a bootstrap of whole systems, at both levels: utterances of one system are alike, so that an
    utterance is less news than it seems, and intervals from drawing utterances would be too short. (Drawing
    utterances anew within the systems drawn would add their noise to system means that hold it already: a second
    time, which lowers correlations and raises the error. With 187 simulated systems of 3 utterances such intervals
    held the true error of system means in 28 % of cases, and these in 92 %.) An utterance without a system is a unit
    of its own; with at most one system utterances are drawn. The same resamples serve every predictor, so differences
    are paired.

    Args:
      rated: the recordings; those without MOS are counted only.
      scores: by predictor ``[N]`` in the order of `rated`; NaN where there is none. The first is what the others are
        compared with.
      predictors: those among them whose nominal scale is to be compared with the ratings'.
      resamples: of the bootstrap.
      seed: of the bootstrap; the order of `rated` changes nothing.

    Returns:
      Plain numbers, None where undefined. ``recordings``, ``unrated``, ``unscored`` (rated ones without a score, by
      predictor), ``used``, ``systems``, ``without_system``; ``level``, ``resamples``, ``seed``; ``utterance`` and
      ``system``, each with ``n``, ``drawn`` ("systems" or "utterances"), ``units``, how many of them,
      ``predictors`` by name, and ``differences`` from the first one by name: by statistic ``value``, ``interval``,
      and ``undefined``, resamples in which it is; ``warnings``.

    Raises:
      ValueError: no scores, scores for another number of recordings, or resamples out of range.
    """
    if not scores:
        raise ValueError("Nothing to compare with the ratings: expected the scores of at least one predictor.")
    for name, found in scores.items():
        if len(found) != len(rated):
            raise ValueError(f"Expected a score of {name} for each of {len(rated)} recordings, got {len(found)}.")
    if resamples < 1:
        raise ValueError(f"Expected at least 1 resample, got {resamples}.")
    order = sorted(range(len(rated)), key=lambda i: rated[i].id)
    mos = np.array([math.nan if rated[i].mos is None else rated[i].mos for i in order], np.float64)
    given = np.array([np.asarray(found, np.float64)[order] for found in scores.values()])
    known = np.isfinite(mos)
    used = known & np.isfinite(given).all(axis=0)
    names = [rated[i].system for i, use in zip(order, used, strict=True) if use]
    x, y = given[:, used], mos[used]
    unscored = {name: int(np.sum(known & ~np.isfinite(row))) for name, row in zip(scores, given, strict=True)}
    belongs = np.array([name is not None for name in names], bool)
    systems, system = np.unique([name for name in names if name is not None], return_inverse=True)
    alone = len(systems) < 2
    # Units: the systems first, then each utterance that has none; all are utterances where systems cannot be drawn.
    unit = np.arange(len(y))
    if not alone:
        unit[belongs], unit[~belongs] = system, len(systems) + np.arange(int(np.sum(~belongs)))
    made: dict[str, Any] = {
        "recordings": len(rated),
        "unrated": int(np.sum(~known)),
        "unscored": unscored,
        "used": int(np.sum(used)),
        "systems": len(systems),
        "without_system": int(np.sum(~belongs)),
        "level": LEVEL,
        "resamples": resamples,
        "seed": seed,
        "utterance": _level(list(scores), x, y, unit, resamples, seed)
        | {"drawn": "utterances" if alone else "systems"},
        "system": _level(
            list(scores),
            statistics.system_means(x[:, belongs], system),
            statistics.system_means(y[belongs], system),
            np.arange(len(systems)),
            resamples,
            seed,
        )
        | {"drawn": "systems"},
    }
    return page.plain(made | {"warnings": [*_warnings(made), *_off_scale(predictors, y)]})


def rows(rated: Sequence[Rated], found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Row]:
    """One row per recording, in order: ``file``, ``system``, ``mos``, ``score_NAME`` by predictor, and ``reason``.

    Args:
      rated: the recordings.
      found: of :func:`gather`.
    """
    made = []
    for i, one in enumerate(rated):
        mine = {name: of[i] for name, of in found.items()}
        said = [f"{name}: {row['reason']}" for name, row in mine.items() if row["status"] not in ("ok", "unrated")]
        reason = "not rated" if one.mos is None else "; ".join(said)
        numbers = {f"score_{name}": row["score"] for name, row in mine.items()}
        made.append({"file": one.id, "system": one.system, "mos": one.mos, **numbers, "reason": reason})
    return made


def write(folder: str | Path, summary: Mapping[str, Any], table: Sequence[Mapping[str, Any]]) -> None:
    """Writes ``agreement.json``, the summary, and ``agreement.csv``, the rows of :func:`rows`, into a folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    run.write_text(folder / TABLE, out.getvalue())
    run.write_json(folder / RESULT, summary)


def table(summary: Mapping[str, Any]) -> Table:
    """Both levels for a terminal of 80 columns: each statistic with its interval below it."""
    levels = [level for level in LEVELS if summary[level]["n"] or level == "utterance"]
    drawn = dict.fromkeys(f"{summary[level]['units']} {summary[level]['drawn']}" for level in levels)
    made = bare_table(
        f"below each number its {100 * summary['level']:g} % interval, from {summary['resamples']} resamples of "
        f"{' and '.join(drawn)}; differences are on the same resamples. MSE is of raw scores."
    )
    made.add_column("", overflow="fold", min_width=20)
    for head in HEADS.values():
        made.add_column(head, justify="right", no_wrap=True)
    for level in levels:
        found = summary[level]
        if made.row_count:
            made.add_row()
        made.add_row(f"by {level}, n = {found['n']}", style="bold")
        for name, entry in found["predictors"].items():
            _add(made, name, entry, "")
        first = next(iter(found["predictors"]))
        for name, entry in found["differences"].items():
            _add(made, f"{name}\n− {first}", entry, "+")
    return made


_UNRATED: Row = {"score": None, "status": "unrated", "reason": ""}


def _add(made: Table, name: str, entry: Mapping[str, Any], sign: str) -> None:
    cells = []
    for key in HEADS:
        low, high = (page.number(bound, f"{sign}.2f") for bound in entry[key]["interval"])
        between = low if low == high == "–" else f"{low}, {high}"
        cells.append(Text.assemble(page.number(entry[key]["value"], f"{sign}.3f"), "\n", (between, "dim")))
    made.add_row(name, *cells)


def _level(
    names: Sequence[str], x: np.ndarray, y: np.ndarray, unit: np.ndarray, resamples: int, seed: int
) -> dict[str, Any]:
    """One level's figures, of scores ``[P, N]`` and MOS ``[N]``."""
    units = len(np.unique(unit))
    point = np.array([statistics.statistics(row, y) for row in x])
    if units < statistics.FEWEST:
        draws = np.full((*point.shape, resamples), np.nan)
    else:
        draws = statistics.resampled(x, y, unit, statistics.draw(units, resamples, seed))

    def entry(value: np.ndarray, drawn: np.ndarray) -> dict[str, Any]:
        return {
            key: {
                "value": value[k],
                "interval": statistics.interval(drawn[k], units, LEVEL) if np.isfinite(value[k]) else (None, None),
                "undefined": int(np.sum(np.isnan(drawn[k]))),
            }
            for k, key in enumerate(statistics.STATISTICS)
        }

    return {
        "n": len(y),
        "units": units,
        "predictors": {name: entry(point[p], draws[p]) for p, name in enumerate(names)},
        "differences": {
            name: entry(point[p] - point[0], draws[p] - draws[0]) for p, name in enumerate(names) if p > 0
        },
    }


def _warnings(summary: Mapping[str, Any]) -> list[str]:
    made = []
    lost = {name: n for name, n in summary["unscored"].items() if n}
    if lost:
        named = ", ".join(f"{name} {n}" for name, n in lost.items())
        rated = summary["recordings"] - summary["unrated"]
        made.append(f"Rated recordings without a score: {named} of {rated}; they are left out for every predictor.")
    if summary["systems"] and summary["without_system"]:
        made.append(
            f"{summary['without_system']} of {summary['used']} recordings have no system: they count by utterance "
            "only, each as a system of its own in the resamples."
        )
    for level in LEVELS:
        found = summary[level]
        undefined = [
            name
            for name, entry in found["predictors"].items()
            if any(entry[key]["value"] is None or np.isnan(entry[key]["value"]) for key in ("srcc", "lcc", "ktau"))
        ]
        if not found["n"]:
            continue
        if found["n"] < statistics.FEWEST:
            made.append(f"By {level} there are {found['n']} points only: a correlation needs {statistics.FEWEST}.")
        elif undefined:
            made.append(
                f"By {level} the correlation of {', '.join(undefined)} is undefined: all its scores, or all ratings, "
                "are equal."
            )
        if found["units"] < statistics.FEWEST:
            made.append(f"{found['units']} {found['drawn']} are too few to draw from: no intervals by {level}.")
        elif found["units"] < FEW:
            made.append(f"{found['units']} {found['drawn']} are few: intervals by {level} are rough.")
    if not summary["used"]:
        made.append("No recording is both rated and scored by every predictor.")
    return made


def _off_scale(predictors: Sequence[Predictor], mos: np.ndarray) -> list[str]:
    """Says where an error compares two scales."""
    return [
        f"Ratings from {mos.min():g} to {mos.max():g} are not on the scale of {predictor.name}, "
        f"{predictor.scale[0]:g} to {predictor.scale[1]:g}: its MSE says nothing."
        for predictor in predictors
        if len(mos) and not (predictor.scale[0] <= mos.min() and mos.max() <= predictor.scale[1])
    ]


def _rated(utterance: inputs.Utterance) -> Rated:
    meta = utterance.meta
    try:
        mos = float(meta.get("mos") or "nan")
        listeners = int(meta["listeners"]) if meta.get("listeners") else None
    except ValueError:
        raise ValueError(
            f"{utterance.id!r}: expected numbers as mos and listeners, got {meta.get('mos')!r} and "
            f"{meta.get('listeners')!r}."
        ) from None
    known = None if math.isnan(mos) else mos
    if known is not None and not math.isfinite(known):
        raise ValueError(f"{utterance.id!r}: expected a finite mos, got {meta['mos']!r}.")
    split = meta.get("split") or "test"
    return Rated(utterance.id, utterance.path, meta.get("system") or None, known, listeners, split, meta)


def _stored(file: str | os.PathLike[str], rated: Sequence[Rated]) -> list[Row]:
    """The rows of a file of scores, in the order of `rated`.

    Raises:
      ValueError: no such file, no scores, a recording listed twice, or none of these recordings.
    """
    shown, found = repr(os.fspath(file)), {}
    for row in inputs.listing(file):
        name = row.get("file", "")
        if "score" not in row or not name:
            raise ValueError(f"{shown} holds no scores: expected columns file and score, got {', '.join(row)}.")
        if name in found:
            raise ValueError(f"{shown} lists {name!r} twice: keep one.")
        try:
            score = float(row["score"] or "nan")
        except ValueError:
            raise ValueError(f"{shown}: expected a number as the score of {name!r}, got {row['score']!r}.") from None
        found[name] = {
            "score": score if math.isfinite(score) else None,
            "status": "ok" if math.isfinite(score) else row.get("status") or "failed",
            "reason": row.get("reason", ""),
        }
    if found and not any(one.id in found for one in rated):
        raise ValueError(
            f"{shown} has no score of any recording listed: it names {next(iter(found))!r}, the list {rated[0].id!r}."
        )
    missing = {"score": None, "status": "failed", "reason": "not in the file of scores"}
    return [_UNRATED if one.mos is None else found.get(one.id, missing) for one in rated]
