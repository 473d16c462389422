"""The commands: parse, call, print. Only results go to standard output."""

import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from jaxhack import progress
from jaxhack.cli.errors import Group, stoppable
from jaxhack.cli.options import (
    FORMAT,
    MODELS,
    OVERWRITE,
    PATHS,
    RESUME,
    attack_options,
    by_attacker,
    folder_name,
    halves,
    listed,
    recipe_option,
    size,
)
from jaxhack.cli.output import (
    bar,
    empty_folder,
    finish,
    make_console,
    output_of,
    print_summary,
    print_warnings,
    write,
    written,
)
from jaxhack.settings import BLIND, DEFAULT_CODEC, DEFAULT_PREDICTOR, Recipe

# jax and what needs it are imported inside the commands: `jaxhack --help` is instant.


@click.group(cls=Group, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.version_option(package_name="jaxhack")
def main() -> None:
    """Measure how hackable a speech quality predictor is.

    Exit status: 0 all done, 1 some inputs failed (their rows say why), 2 wrong usage, 130 stopped by Ctrl-C.
    """


@main.command(epilog="\b\nExample:\n  jaxhack score recordings/ --predictor nisqa > scores.csv")
@PATHS
@click.option("--predictor", metavar="NAME", required=True, help="A name, FILE.onnx, or package.module:function.")
@MODELS
@FORMAT
@click.option("--out", metavar="FILE", help="New file for the rows.  [default: standard output]")
@click.option(
    "--sample-rate",
    type=click.IntRange(min=1),
    metavar="HZ",
    help="Rate at which all files are judged.  [default: the file's own, or the predictor's only one]",
)
def score(paths, predictor, models, form, out, sample_rate) -> None:
    """Score recordings, one row each, in input order.

    PATH is an audio file, a folder, a manifest (.csv, .jsonl) or a Kaldi list (.scp).
    """
    from jaxhack import inputs, registry, scoring

    utterances = inputs.collect(paths)
    made = registry.predictor(predictor, models=models, sample_rate=sample_rate)
    rows = scoring.score_files(made, utterances, sample_rate=sample_rate)
    with output_of(out) as stream:
        finish(write(rows, scoring.columns(made), form, stream, len(utterances)))


@main.command(epilog="\b\nExample:\n  jaxhack probe\n  jaxhack probe recordings/ --predictor nisqa --out shifts.csv")
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path())
@click.option(
    "--predictor", metavar="NAME", default=DEFAULT_PREDICTOR, help="A name, FILE.onnx, or package.module:function."
)
@click.option("--codec", metavar="NAME", default=DEFAULT_CODEC, help="Of the round trip.")
@MODELS
@FORMAT
@click.option("--out", metavar="FILE", help="New file for the rows, one per recording and probe.")
def probe(paths, predictor, codec, models, form, out) -> None:
    """See what a score does before anyone attacks it.

    Every recording is scored as it is and after changes that leave its quality as it is, or nearly so; then silence,
    noise and the like are scored. PATH is as for `score`; without it, demo speech that ships with jaxhack is probed.
    """
    from jaxhack import probing

    utterances, made, probes = probing.prepare(paths or None, predictor=predictor, codec=codec, models=models)
    found = probing.run(made, utterances, probes)
    total = probing.count(len(utterances), probes)
    with output_of(out or os.devnull) as stream:
        rows = list(written(found, probing.COLUMNS, form, stream, total))
    summary = probing.summarise(rows, made)
    console = make_console()
    console.print(*probing.tables(summary), sep="\n\n")
    print_warnings(console, summary["warnings"])
    failed = summary["recordings"] - summary["scored"]
    if failed:
        reasons = "the rows say why" if out else "--out FILE keeps the rows, which say why"
        click.echo(f"{failed} of {summary['recordings']} recordings have no score: {reasons}", err=True)
        sys.exit(1)


@main.command(
    epilog="\b\nExample:\n  jaxhack agreement labels.csv --predictor nisqa --predictor dnsmos --out agreement/"
)
@click.argument("paths", nargs=-1, required=True, metavar="LIST...", type=click.Path())
@click.option(
    "--predictor",
    "predictors",
    metavar="NAME",
    multiple=True,
    help="A name, FILE.onnx, or package.module:function; again for more, which are compared with the first.",
)
@click.option(
    "--scores", multiple=True, metavar="FILE", help="Rows that `score` wrote of these recordings, as a predictor."
)
@MODELS
@click.option("--resamples", type=click.IntRange(min=1), default=2000, help="Of the bootstrap of systems.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Of the bootstrap.")
@click.option("--out", metavar="DIR", help="New or empty folder for the figures (JSON) and every score (CSV).")
def agreement(paths, predictors, scores, models, resamples, seed, out) -> None:
    """See how well predictors agree with people's ratings.

    LIST (.csv, .jsonl) names recordings, with columns file, mos (empty: not rated) and, where there are systems,
    system; or it is a set that jaxhack.data reads, such as bvcc:DIR, of which the test split is taken. Rank
    correlation (SRCC, Kendall's tau-b), linear correlation (LCC) and mean squared error (MSE) are given
    by utterance and by system, with 95 % intervals, and so are the differences from the first predictor.
    """
    from jaxhack import agreement as work

    folder = empty_folder(out) if out else None
    rated = work.read(paths)
    many = sum(one.mos is not None for one in rated) * len(predictors)
    with bar(many) as advance:
        found, made = work.gather(rated, predictors=predictors, scores=scores, models=models, observe=advance)
    values = {name: work.values(rows) for name, rows in found.items()}
    summary = work.summarise(rated, values, made, resamples, seed)
    if folder:
        work.write(folder, summary, work.rows(rated, found))
    console = make_console()
    console.print(work.table(summary))
    print_warnings(console, summary["warnings"])
    if folder:
        console.print(f"Table: {folder / work.TABLE}", markup=False, highlight=False, soft_wrap=True)
    if any(summary["unscored"].values()):
        reasons = "the rows say why" if out else "--out DIR keeps the rows, which say why"
        click.echo(f"{max(summary['unscored'].values())} rated recordings have no score: {reasons}", err=True)
        sys.exit(1)


@main.command(epilog="\b\nExample:\n  jaxhack reconstruct recordings/ --codec lyra --out reconstructed/")
@PATHS
@click.option("--codec", metavar="NAME", required=True, help="A name; see `jaxhack models`.")
@click.option("--out", metavar="DIR", required=True, help="New or empty folder for the 16-bit WAV files.")
@MODELS
@FORMAT
def reconstruct(paths, codec, out, models, form) -> None:
    """Send recordings through a codec and back.

    Writes mono 16-bit WAV at the codec's rate, each exactly as long as its input, and prints one row each.
    PATH is an audio file, a folder, a manifest (.csv, .jsonl) or a Kaldi list (.scp).
    """
    from jaxhack import inputs, registry
    from jaxhack import reconstruct as work

    folder = empty_folder(out)
    utterances = inputs.collect(paths)
    made = registry.codec(codec, models=models)
    click.echo(f"{made.name}: {made.sample_rate} Hz; its delay of {made.delay} samples is taken off", err=True)
    rows = work.reconstruct_files(made, utterances, folder)
    finish(write(rows, work.COLUMNS, form, sys.stdout, len(utterances)))


@main.command(
    epilog="\b\nExample:\n  jaxhack audit\n  jaxhack audit recordings.csv --predictor dnsmos --profile standard"
)
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path())
@click.option(
    "--predictor",
    metavar="NAME",
    default=DEFAULT_PREDICTOR,
    help="A name, FILE.onnx, or package.module:function; several as one by min(A,B) or mean(A,B); defended by "
    "smoothed(A,waveform=SIGMA), smoothed(A,CODEC=SIGMA) or denoised(A,CODEC).",
)
@click.option(
    "--space", metavar="KIND,…", default="latent", help="latent, quantised, codes, waveform, noise, or all."
)
@click.option(
    "--codec", metavar="NAME", default=DEFAULT_CODEC, help="Chain of the spaces latent, quantised and codes."
)
@click.option(
    "--attacker",
    metavar="NAME,…",
    default="grpo",
    help="Trained: grpo, grpo-literal, universal-grpo, universal. On each recording alone: pgd, apgd, nes, square, "
    "codes-search. Or all.",
)
@attack_options
@click.option(
    "--epsilon", metavar="SIZE,…", help="Size of the perturbation; of several, one is chosen.  [default: the space's]"
)
@click.option(
    "--asr-model", metavar="DIR", help="Whisper model in CTranslate2's format, for wer.  [default: PocketSphinx]"
)
@halves
@MODELS
@click.option(
    "--sample-rate",
    type=click.IntRange(min=1),
    metavar="HZ",
    help="Rate at which the predictor listens.  [default: the codec's, or the predictor's only one]",
)
@click.option(
    "--out", metavar="DIR", help="New folder for rows, summary, report and examples.  [default: runs/PREDICTOR]"
)
@RESUME
@OVERWRITE
def audit(paths, predictor, out, space, attacker, epsilon, options, **settings: Any) -> None:
    """Measure how hackable a predictor is: train attackers, attack recordings that they never saw.

    PATH is an audio file, a folder, a manifest (.csv, .jsonl) or a Kaldi list (.scp); all PATHs together are split
    into a training and a test half, by speaker where a manifest has a column of that name. Without PATH, --train and
    --test, demo speech that ships with jaxhack is audited at the quick profile's size: a first look in minutes,
    offline. DIR holds rows.parquet, summary.json and report.html at the end.

    Of several attackers, spaces or sizes, each combination is an audit in a folder of its own in DIR, and the report
    is of the worst case over all.
    """
    from jaxhack import auditing, suites

    spaces, attackers = listed("--space", space), listed("--attacker", attacker)
    epsilons = [] if epsilon is None else [size(text) for text in listed("--epsilon", epsilon)]
    many = max(len(spaces), len(attackers), len(epsilons)) > 1 or "all" in (*spaces, *attackers) or "/" in attacker
    own = by_attacker(options, attackers)
    if not many and (others := own.keys() - set(attackers)):
        raise ValueError(f"--option: {others.pop()} has options, and is not among the attackers.")
    out = out or str(Path("runs", folder_name(predictor)))
    with stoppable(), progress.display() as observe:
        settings |= {"predictor": predictor, "out": out, "observe": observe}
        if many:
            settings |= {"spaces": spaces, "attackers": attackers, "epsilons": epsilons, "options": own}
            summary = suites.suite(paths or None, **settings)
        else:
            settings |= {"space": spaces[0], "attacker": attackers[0], "epsilon": next(iter(epsilons), None)}
            summary = auditing.audit(paths or None, options=own.get(attackers[0], {}), **settings)
    print_summary(summary, out)
    unread = len(summary["inputs"]["unread"])
    unjudged = max(a["n_failed"] + a["n_undetermined"] for a in summary["lines" if many else "attackers"])
    if unread or unjudged:
        said = [f"{unread} of {summary['inputs']['train']} training recordings gave nothing"] if unread else []
        if unjudged:
            said.append(f"up to {unjudged} of {summary['inputs']['test']} test recordings have no verdict")
        click.echo(f"{', and '.join(said)}: the report says why", err=True)
        sys.exit(1)


@main.command(epilog="\b\nExample:\n  jaxhack transfer runs/dnsmos-p808 --predictor nisqa --out runs/transfer")
@click.argument("given", nargs=-1, required=True, metavar="RUN... [PATH]...", type=click.Path())
@click.option(
    "--predictor",
    "predictors",
    metavar="NAME",
    multiple=True,
    help="Who judges: a name, FILE.onnx, or package.module:function; again for more.  [default: of a patching its "
    "parent and what each round made of it]",
)
@click.option(
    "--attacked", metavar="NAME", help="Whom RUN attacked, where its record does not lead there (FILE.onnx)."
)
@MODELS
@click.option(
    "--out", metavar="DIR", required=True, help="New folder: one run for each RUN and predictor, and a table."
)
@click.option("--resume", is_flag=True, help="Continue what was interrupted.")
@click.option("--overwrite", is_flag=True, help="Replace the runs in DIR.")
def transfer(given, predictors, attacked, models, out, resume, overwrite) -> None:
    """Let the attackers of finished runs loose, and other predictors judge.

    RUN is the folder of an audit, a suite or a patching. Its attackers perturb its own test recordings (a patching's:
    those that they learned on) or, where given, those of PATH; attackers that learn nothing beforehand attack their
    run's predictor again.
    """
    from jaxhack import run, transferring

    runs = [path for path in given if os.path.exists(Path(path, run.RECORD))]
    paths = [path for path in given if path not in runs]
    if not runs:
        raise ValueError(f"{given[0]!r} holds no run ({run.RECORD}): name the folder of a finished audit first.")
    with stoppable(), progress.display() as observe:
        lines = transferring.transfer(
            runs,
            paths,
            predictors=predictors,
            attacked=attacked,
            models=models,
            out=out,
            resume=resume,
            overwrite=overwrite,
            observe=observe,
        )
    console = make_console()
    console.print(transferring.table(lines))
    warned = sum(line["warnings"] for line in lines if line["transferred"])
    if warned:
        console.print(f"{warned} warnings: see the report in each folder.", highlight=False, style="yellow")
    console.print(f"Table: {Path(out) / transferring.TABLE}", markup=False, highlight=False, soft_wrap=True)


@main.command(epilog="\b\nExample:\n  jaxhack certify runs/smoothed")
@click.argument("run", metavar="RUN", type=click.Path())
@click.option(
    "--draws", type=click.IntRange(min=1), default=1000, help="Of the noise, for x̂ and for the attack of each seed."
)
@click.option("--alpha", type=float, default=0.001, help="Probability that a bound is wrong, of each by itself.")
@click.option("--limit", type=int, metavar="N", help="Test recordings certified.  [default: every one]")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Of the draws.")
@click.option(
    "--attacked", metavar="NAME", help="The predictor of RUN, where its record does not lead there (FILE.onnx)."
)
@MODELS
@click.option("--resume", is_flag=True, help="Continue what was interrupted.")
@click.option("--overwrite", is_flag=True, help="Replace the certificates in RUN.")
def certify(run, **options: Any) -> None:
    """Bound what any attack can make of a smoothed score, beside what the attacks of RUN surely did.

    RUN is the folder of a finished audit of smoothed(…). Its report gets a section, and certificates.jsonl a line for
    each test recording.
    """
    from jaxhack import certifying
    from jaxhack.report import certificate

    with stoppable(), progress.display() as observe:
        found = certifying.certify_run(run, observe=observe, **options)
    console = make_console()
    console.print(certificate.table(found))
    print_warnings(console, certificate.warnings(found))
    console.print(f"Report: {Path(run) / 'report.html'}", markup=False, highlight=False, soft_wrap=True)
    if found["failed"]:
        click.echo(f"{len(found['failed'])} recordings have no certificate: {certificate.LINES} says why", err=True)
        sys.exit(1)


@main.command(epilog="\b\nExample:\n  jaxhack patch recordings.csv --predictor nisqa --profile standard")
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path())
@click.option("--predictor", metavar="NAME", default=DEFAULT_PREDICTOR, help="A name, or a patched one's folder.")
@click.option("--space", metavar="KIND,…", help="Spaces of the attacks.  [default: latent]")
@click.option("--codec", metavar="NAME,…", default=DEFAULT_CODEC, help="Chains, for every space that has one.")
@click.option("--attacker", metavar="NAME,…", help="As of audit; waveform/pgd names its space too.  [default: grpo]")
@attack_options
@click.option("--epsilon", type=float, metavar="SIZE", help="Of the perturbations.  [default: each space's]")
@halves
@click.option(
    "--ratings",
    metavar="SET:DIR",
    help="What people said, of its split train: a set that jaxhack.data reads, such as bvcc:DIR, or csv:DIR.",
)
@recipe_option(
    "--source",
    "Where pairs come from: hacks that the panel witnessed; or unseen noise, pgd, random.",
    metavar="|".join(("hacks", *BLIND)),
)
@recipe_option("--rounds", "Rounds K of attack and fit.")
@recipe_option("--fit-steps", "Steps of AdamW in a round.")
@recipe_option("--fit-batch", "Unattacked clips in a step, and as many pairs.")
@recipe_option("--fit-seconds", "Longest cut of a clip or a pair, s.")
@recipe_option("--learning-rate", "Of AdamW.")
@recipe_option("--margin", "By which x̂ should score above y, MOS.")
@recipe_option("--weight", "Of the margin ranking loss, beside the regression.")
@recipe_option("--consistency", "Weight of a pair's squared difference.")
@recipe_option("--gradient-norm", "Weight of the score's gradient norm.")
@recipe_option("--prefer-input", "Rank x, not x̂, above y: the paper's ablation.", is_flag=True)
@recipe_option("--capacity", "Pairs that are kept.")
@MODELS
@click.option("--out", metavar="DIR", help="New folder.  [default: runs/PREDICTOR-patch]")
@RESUME
@OVERWRITE
def patch(paths, predictor, out, space, codec, attacker, options, ratings, models, **given: Any) -> None:
    """Train a predictor against attacks on it, round by round; DIR/patched is a predictor's name from then on.

    Recordings are split as by audit, and only the training half is used: audit DIR/patched with the same recordings
    and seed, and its test half is new to it. Without ratings, the predictor's own scores of unattacked speech stand
    for them.
    """
    from jaxhack import data
    from jaxhack.patch import loop, patched

    recipe = Recipe(**{field.name: given.pop(field.name) for field in fields(Recipe)})
    attackers = listed("--attacker", attacker) if attacker is not None else []
    out = out or str(Path("runs", f"{folder_name(predictor)}-patch"))
    with stoppable(), progress.display() as observe:
        summary = loop.patch(
            paths or None,
            predictor=predictor,
            codecs=listed("--codec", codec),
            spaces=listed("--space", space) if space is not None else [],
            attackers=attackers,
            options=by_attacker(options, attackers or ["pgd" if recipe.source == "pgd" else loop.DEFAULT_ATTACKER]),
            models=models,
            out=out,
            recipe=recipe,
            rated=data.read(ratings) if ratings else (),
            observe=observe,
            **given,
        )
    print_summary(summary, out)
    made = Path(out) / patched.FOLDER
    make_console().print(f"Predictor: {made}", markup=False, highlight=False, soft_wrap=True)
    if summary["unread"]:
        click.echo(f"{len(summary['unread'])} recordings gave nothing to learn from: the report says why", err=True)
        sys.exit(1)


@main.command(epilog="\b\nExample:\n  jaxhack report runs/nisqa")
@click.argument("run", metavar="RUN", type=click.Path())
def report(run) -> None:
    """Make summary.json, table.csv and report.html anew from what RUN stores; nothing is computed again."""
    from jaxhack import report as work
    from jaxhack import run as runs
    from jaxhack.report import patching, suite

    try:
        stored = Path(run, runs.RECORD)
        record = runs.read(stored)["record"] if os.path.isfile(stored) else {}
        made = patching.make if "recipe" in record else suite.make if "legs" in record else work.make
        summary = made(Path(run))
    except (LookupError, TypeError, AttributeError) as error:
        kind = type(error).__name__
        raise ValueError(
            f"{run!r} holds files that no audit wrote ({kind}: {error}): undo what changed them."
        ) from error
    print_summary(summary, run)


@main.group(invoke_without_command=True, epilog="\b\nExample:\n  jaxhack models get nisqa")
@MODELS
@click.pass_context
def models(ctx, models) -> None:
    """List predictors and codecs, and which of their weights are here."""
    if ctx.invoked_subcommand is None:
        _list_models(models)


@models.command("get", epilog="\b\nExample:\n  jaxhack models get dnsmos")
@click.argument("name")
def get(name) -> None:
    """Fetch the weights of NAME into the user's cache, their hashes checked.

    Weights without a confirmed hash are not fetched: the command says where to put a file of your own.
    """
    from jaxhack import registry, weights

    for weight in registry.weights_of(name):
        click.echo(f"{weight.file}: {weights.described_licence(weight.licence)}; {weight.origin}", err=True)
        click.echo(weights.fetch(weight))


def _list_models(folder: str | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from jaxhack import registry, weights

    weights.check_folder(folder)
    console = Console(width=None if sys.stdout.isatty() else 220)
    headings = ["name", "kind", "weights", "size", "licence", "origin", "command"]
    if console.width < 140:
        headings = headings[:5]
    caption = "jaxhack models get NAME fetches what is missing, or says what to bring into DIR, see --models."
    table = Table(caption=caption, caption_justify="left")
    for heading in headings:
        table.add_column(heading, no_wrap=heading != "licence", overflow="fold")
    for name in registry.names():
        kind, row = registry.entry(name).kind, [""] * 4
        try:
            files = registry.weights_of(name)
        except ImportError as error:
            have = f"not installed: {error}"
        else:
            have = _have(files, folder)
            sizes = [weight.size for weight in files if weight.size is not None]
            row = [
                f"{sum(sizes) / 1e6:.1f} MB" if sizes else "",
                ", ".join(dict.fromkeys(weights.described_licence(weight.licence) for weight in files)),
                ", ".join(dict.fromkeys(weight.origin for weight in files)),
                ""
                if have in ("have", "unchecked")
                else ", ".join(dict.fromkeys(_command(name, weight) for weight in files)),
            ]
        table.add_row(*[name, kind, have, *row][: len(headings)])
    console.print(table, markup=False, emoji=False)


def _command(name: str, weight) -> str:
    """How the file of a weight comes here."""
    return f"jaxhack models get {name}" if weight.source else f"bring {weight.file} into DIR/{weight.folder}"


def _have(files, folder: str | None) -> str:
    from jaxhack import weights

    try:
        absent = [weight for weight in files if weights.find(weight, folder) is None]
    except ValueError:
        return "wrong contents"
    if not absent:
        return "have" if all(weight.sha256 for weight in files) else "unchecked"
    return "missing" if all(weight.source for weight in absent) else "to bring"
