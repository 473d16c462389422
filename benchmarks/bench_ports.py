"""Speed of every port, beside the official module, and its share of what matrix products reach on this machine.

    python -m benchmarks.bench_ports --models ../shared/models --speech ../shared/speech --out ports.json

Both sides take clip after clip; ours in one compiled loop, as everything here calls the ports. GFLOP are two for each
multiply-add in the official module's products and convolutions, as PyTorch counts them, and the same for both sides;
where the official side is not PyTorch's, those in our program, the turns of its loops multiplied. The ceiling is the
most that a large float32 product reached in this run, of both libraries. Weights are the published ones where they
are at hand, otherwise random ones of the published size, given to both sides.
"""

import math
import os
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params

from benchmarks import official, timing
from jaxhack import audio, registry
from jaxhack.parallel import mapped
from jaxhack.types import Codec, Predictor
from ports import dac, encodec, mimi, ssl_mos, utmos, wav2vec2


class Size(NamedTuple):
    clips: int
    seconds: float
    repeats: int
    product: int  # rows of the matrices whose product is the ceiling
    narrow: bool = False  # small configurations of what has random weights


FULL, TINY = Size(2, 3.0, 5, 4096), Size(1, 0.5, 1, 256, narrow=True)


class Setup(NamedTuple):
    """What a case is made from."""

    size: Size
    models: Path
    speech: Path
    scratch: Path  # a folder for files on the way
    notes: list[str]

    def wavs(self, sample_rate: int) -> np.ndarray:
        return timing.recordings(self.speech, self.size.clips, self.size.seconds, sample_rate)

    def sized(self, config: Any, narrow: Mapping[str, Any]) -> Any:
        return config._replace(**narrow) if self.size.narrow else config

    def published(self, port: str, make: Callable[[], Any]) -> Any:
        """The official side; None and a note where it is absent."""
        try:
            return make()
        except ImportError as error:
            self.notes.append(f"{port}: the official side is absent ({error}), agreement not checked")
            return None


class Task(NamedTuple):
    """Something that a port computes of a clip."""

    port: str
    name: str
    ours: Callable[..., Any]  # (parameters, an item of each of `given`) -> array
    params: Any
    given: tuple[np.ndarray, ...]  # [clips, ...] each
    seconds: float  # of audio in a clip
    theirs: Callable[[int], Any] | None  # number of the clip -> array
    tolerance: float = 1e-3  # of the difference's root mean square, relative to theirs
    counted: bool = True  # by PyTorch: `theirs` is a module of its


def ceiling(rows: int, repeats: int) -> dict[str, float]:
    """GFLOP/s of a product of square matrices, the best of each library that is at hand."""
    x = np.random.default_rng(0).normal(size=(rows, rows)).astype(np.float32)
    ours, run = jnp.asarray(x), jax.jit(partial(jnp.matmul, precision="highest"))
    calls: dict[str, Callable[[], Any]] = {"jax": lambda: run(ours, ours)}
    try:
        import torch
    except ImportError:
        pass
    else:
        theirs = torch.tensor(x)
        calls["torch"] = lambda: theirs @ theirs
    return {name: 2e-9 * rows**3 / spent["min_s"] for name, spent in timing.in_turns(calls, repeats).items()}


def counted_by_torch(call: Callable[[], Any]) -> float:
    """GFLOP of one call, attention in its plain form, which PyTorch's counter knows; LSTMs it does not know."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    def lstm(x: Any, by_input: Any, by_state: Any, *_: Any, **__: Any) -> int:
        return 2 * math.prod(x[:2]) * (math.prod(by_input) + math.prod(by_state))

    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.mkldnn_rnn_layer: lstm})
    with sdpa_kernel(SDPBackend.MATH), counter:
        call()
    return counter.get_total_flops() / 1e9


def counted_in_program(function: Callable, *arguments: Any) -> float:
    """GFLOP of the products and convolutions of our own function."""
    return _flops(jax.make_jaxpr(function)(*arguments).jaxpr) / 1e9


def _flops(jaxpr: Any) -> float:
    total = 0.0
    for equation in jaxpr.eqns:
        out, name = equation.outvars[0].aval, equation.primitive.name
        if name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            total += 2 * out.size * math.prod(equation.invars[0].aval.shape[i] for i in contracted)
        elif name == "conv_general_dilated":
            kernel, layout = equation.invars[1].aval, equation.params["dimension_numbers"].rhs_spec
            total += 2 * out.size * kernel.size / kernel.shape[layout[0]]
        turns = equation.params["length"] if name == "scan" else 1
        total += turns * sum(map(_flops, jaxprs_in_params(equation.params)))
    return total


def measure(task: Task, most: float, repeats: int) -> tuple[dict[str, Any], dict[str, float]]:
    """A row of numbers, and how near the two sides are. `most`: GFLOP/s of a product."""
    clips = len(task.given[0])
    batch = lambda params, *given: mapped(partial(task.ours, params))(*given)  # noqa: E731
    run, seconds = timing.compiled(batch, task.params, *task.given)
    calls: dict[str, Callable[[], Any]] = {"": lambda: run(task.params, *task.given)}
    agreement = {}
    if task.theirs is not None:
        calls["official_"] = lambda: [task.theirs(i) for i in range(clips)]
        ours, theirs = (np.asarray(call()) for call in calls.values())
        ours, name = ours[:, : theirs.shape[1]], f"{task.port} {task.name} (relative)"
        error = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
        agreement[name] = timing.agree(name, error, 0.0, task.tolerance)
    by_torch = task.theirs is not None and task.counted
    if by_torch:
        gflop = counted_by_torch(lambda: task.theirs(0))
    else:
        gflop = counted_in_program(task.ours, task.params, *(x[0] for x in task.given))
    row: dict[str, Any] = {"port": task.port, "task": task.name, "counted": "torch" if by_torch else "program"}
    row |= {"gflop_per_audio_s": gflop / task.seconds, "compile_s": seconds}
    for side, spent in timing.in_turns(calls, repeats).items():
        rate = clips / spent["median_s"]
        row |= {side + key: value for key, value in spent.items()}
        row |= {f"{side}audio_s_per_s": rate * task.seconds, f"{side}gflop_per_s": rate * gflop}
        row |= {f"{side}share": rate * gflop / most}
    if task.theirs is not None:
        row["times_official"] = row["official_median_s"] / row["median_s"]
    return row, agreement


# --- cases: setup -> tasks; ImportError where the official side is absent and makes the weights, which are random ---


def scoring(predictor: Predictor, wavs: np.ndarray, theirs: Callable | None, counted: bool = True) -> list[Task]:
    given = (wavs, np.full(len(wavs), wavs.shape[1], np.int32))
    seconds = wavs.shape[1] / predictor.sample_rate
    name, heads, params = predictor.name, predictor.heads, predictor.params
    return [Task(name, "score", heads, params, given, seconds, theirs, counted=counted)]


def coding(
    codec: Codec, wavs: np.ndarray, encode: Callable | None = None, decode: Callable | None = None, **options: Any
) -> list[Task]:
    """Both ways, whole frames; decoding starts from our latents."""
    wavs = wavs[:, : wavs.shape[1] // codec.hop * codec.hop]
    z = np.asarray(jax.jit(mapped(partial(codec.encode, codec.params)))(wavs))
    seconds = wavs.shape[1] / codec.sample_rate

    def task(name: str, ours: Callable, x: np.ndarray, theirs: Callable | None) -> Task:
        call = theirs and (lambda i: theirs(x[i]))
        return Task(codec.name, name, ours, codec.params, (x,), seconds, call, **options)

    return [task("encode", codec.encode, wavs, encode), task("decode", codec.decode, z, decode)]


def by_file(name: str, published: Callable[[Path], official.Scorer], counted: bool) -> Callable[[Setup], list[Task]]:
    """A predictor whose official side scores files."""

    def case(setup: Setup) -> list[Task]:
        predictor = registry.predictor(name, models=setup.models)
        wavs = setup.wavs(predictor.sample_rate)
        files = [setup.scratch / f"{name}-{i}.wav" for i in range(len(wavs))]
        for file, wav in zip(files, wavs, strict=True):
            audio.write(file, wav, predictor.sample_rate)
        score = setup.published(name, lambda: published(setup.models))
        return scoring(predictor, wavs, score and (lambda i: score([files[i]])[0]), counted)

    return case


def distillmos_case(setup: Setup) -> list[Task]:
    predictor, wavs = registry.predictor("distillmos", models=setup.models), setup.wavs(16000)
    score = setup.published("distillmos", official.distillmos)
    return scoring(predictor, wavs, score and (lambda i: np.array([score(wavs[i])])))


def ge2e_case(setup: Setup) -> list[Task]:
    embedder, wavs = registry.embedder("ge2e", models=setup.models), setup.wavs(16000)
    made = setup.published("ge2e", official.ge2e)
    given = (wavs, np.full(len(wavs), wavs.shape[1], np.int32))
    theirs = made and (lambda i: made.embed_utterance(wavs[i]))
    return [Task("ge2e", "embed", embedder.embed, embedder.params, given, setup.size.seconds, theirs)]


NARROW_ENCODER = {"channels": 32, "layers": 2, "heads": 4, "feed_forward": 48, "conv_channels": 16}
NARROW_ENCODER |= {"position_kernel": 16, "position_groups": 4}


def encoder_case(name: str, kind: str, config: wav2vec2.Config) -> Callable[[Setup], list[Task]]:
    """A self-supervised encoder, its last hidden state."""

    def case(setup: Setup) -> list[Task]:
        chosen, wavs = setup.sized(config, NARROW_ENCODER), setup.wavs(wav2vec2.SAMPLE_RATE)
        model, net = official.speech_encoder(kind, chosen), wav2vec2.Encoder(chosen)
        params, _ = wav2vec2.load({name: x.numpy() for name, x in model.state_dict().items()}, chosen)
        ours = lambda params, wav: jnp.asarray(net.apply({"params": params}, wav, jnp.int32(wav.shape[0])))[-1]  # noqa: E731
        theirs = lambda i: official.last_hidden_state(model, wavs[i])[0].numpy()  # noqa: E731
        return [Task(name, "features", ours, params, (wavs,), setup.size.seconds, theirs)]

    return case


def finetuned(
    make: Callable[..., Predictor], file: str, prefix: str, head: Callable[..., Any], **sizes: int
) -> Callable[[Setup], list[Task]]:
    """A predictor after an encoder, put together of its published parts."""

    def case(setup: Setup) -> list[Task]:
        config, wavs = setup.sized(wav2vec2.WAV2VEC2_BASE, NARROW_ENCODER), setup.wavs(wav2vec2.SAMPLE_RATE)
        encoder, top = official.speech_encoder("Wav2Vec2", config), head(config.channels, **sizes)
        encoded = {prefix + name: x for name, x in encoder.state_dict().items()}
        predictor = make(official.saved(encoded | top.state_dict(), setup.scratch / file), config=config, **sizes)
        return scoring(predictor, wavs, lambda i: top.score(official.last_hidden_state(encoder, wavs[i])))

    return case


def encodec_case(config: encodec.Config) -> Callable[[Setup], list[Task]]:
    def case(setup: Setup) -> list[Task]:
        narrow = {"filters": 4, "ratios": (64, 5), "dimension": 16, "entries": 32}
        chosen = setup.sized(config, narrow)
        model, file = official.encodec(chosen), setup.scratch / config.file
        official.saved(model.state_dict(), file)
        codec = encodec.codec(encodec.load(file, chosen), chosen)

        def apart(function: Callable, size: int) -> Callable[[np.ndarray], np.ndarray]:
            """In segments of that size, as the original; 0: all at once."""

            def run(x: np.ndarray) -> np.ndarray:
                return np.concatenate([function(model, part) for part in np.split(x, range(size, len(x), size))])

            return run if size else partial(function, model)

        encode, decode = (
            apart(official.encodec_encode, config.segment * codec.hop),
            apart(official.encodec_decode, config.segment),
        )
        return coding(codec, setup.wavs(config.sample_rate), encode, decode)

    return case


def dac_case(setup: Setup) -> list[Task]:
    narrow = {"encoder_dim": 4, "decoder_dim": 16, "latent_dim": 12, "n_codebooks": 4, "codebook_size": 32}
    config = setup.sized(dac.DAC_24KHZ, narrow)
    model, file = official.dac(config), setup.scratch / config.file
    official.saved({"state_dict": model.state_dict(), "metadata": {}}, file)
    codec = dac.codec(dac.load(file, config), config)
    sides = partial(official.dac_encode, model), partial(official.dac_decode, model)
    return coding(codec, setup.wavs(config.sample_rate), *sides)


def mimi_case(setup: Setup) -> list[Task]:
    narrow = {"filters": 4, "ratios": (32, 5), "dimension": 16, "layers": 2, "heads": 2, "feed_forward": 24}
    narrow |= {"codebooks": 5, "entries": 32, "codebook_dimension": 6, "stages": (3, 5)}
    config = setup.sized(mimi.MIMI, narrow)
    model = official.mimi(config)
    model.save_pretrained(setup.scratch)
    codec = mimi.codec(mimi.load(setup.scratch / mimi.FILE, config), config)
    sides = partial(official.mimi_encode, model), partial(official.mimi_decode, model)
    return coding(codec, setup.wavs(codec.sample_rate), *sides)


def lyra_case(setup: Setup) -> list[Task]:
    """The original computes in 8 bits, hence the tolerance."""
    codec, folder = registry.codec("lyra", models=setup.models), setup.models / "lyra_v2"

    def graph(file: str) -> Callable | None:
        return setup.published("lyra", lambda: official.streaming_graph(folder / file, os.cpu_count()))

    encode, decode = graph("soundstream_encoder.tflite"), graph("lyragan.tflite")
    sides = encode and (lambda wav: encode(wav.reshape(-1, codec.hop))), decode and (lambda z: decode(z).ravel())
    return coding(codec, setup.wavs(codec.sample_rate), *sides, tolerance=0.25, counted=False)


def mini_case(setup: Setup) -> list[Task]:
    return coding(registry.codec("mini"), setup.wavs(16000))


CASES: dict[str, Callable[[Setup], list[Task]]] = {
    "nisqa": by_file("nisqa", lambda models: official.nisqa(models / "nisqa/nisqa.tar"), True),
    "nisqa-tts": by_file("nisqa-tts", lambda models: official.nisqa(models / "nisqa/nisqa_tts.tar"), True),
    "dnsmos": by_file("dnsmos", lambda _: official.dnsmos("ovrl_mos", "sig_mos", "bak_mos"), False),
    "dnsmos-p808": by_file("dnsmos-p808", lambda _: official.dnsmos("p808_mos"), False),
    "distillmos": distillmos_case,
    "wav2vec2-base": encoder_case("wav2vec2-base", "Wav2Vec2", wav2vec2.WAV2VEC2_BASE),
    "wavlm-base": encoder_case("wavlm-base", "WavLM", wav2vec2.WAVLM_BASE),
    "ssl-mos": finetuned(ssl_mos.ssl_mos, ssl_mos.FILE, "ssl_model.", official.ssl_mos_head),
    "utmos": finetuned(
        utmos.utmos, utmos.UTMOS_WEIGHTS[0].file, "wav2vec2.", official.utmos_head, hidden=512, projection=2048
    ),
    "ge2e": ge2e_case,
    "encodec-24khz": encodec_case(encodec.ENCODEC_24KHZ),
    "encodec-48khz": encodec_case(encodec.ENCODEC_48KHZ),
    "dac-24khz": dac_case,
    "mimi": mimi_case,
    "lyra": lyra_case,
    "mini": mini_case,
}


@click.command(help=__doc__.splitlines()[0])
@timing.options
@click.option("--case", "cases", multiple=True, type=click.Choice(list(CASES)), help="Only these ports.")
def main(models: Path, speech: Path, tiny: bool, repeats: int | None, out: Path | None, cases) -> None:
    size = TINY if tiny else FULL
    size = size._replace(repeats=repeats or size.repeats)
    ceilings = ceiling(size.product, size.repeats)
    most = max(ceilings.values())
    notes = [f"ceiling {most:.0f} GFLOP/s", "plcmos is a black box: nothing of it is ours to be fast"]
    result: dict[str, Any] = {**size._asdict(), "ceiling_gflop_per_s": ceilings, "rows": [], "agreement": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name in cases or CASES:
            try:
                tasks = CASES[name](Setup(size, models, speech, Path(folder), notes))
            except ImportError as error:
                notes.append(f"{name}: its random weights come from the official side, which is absent ({error})")
                continue
            for task in tasks:
                row, agreement = measure(task, most, size.repeats)
                result["rows"].append(row)
                result["agreement"] |= agreement
    columns = {"port": "", "task": "", "audio_s_per_s": ".1f", "official_audio_s_per_s": ".1f"}
    columns |= {"times_official": ".2f", "gflop_per_audio_s": ".1f", "share": ".0%", "official_share": ".0%"}
    title = f"{size.clips} clips of {size.seconds:g} s, median of {size.repeats}"
    timing.publish(result | {"notes": notes}, title, columns, out)


if __name__ == "__main__":
    main()
