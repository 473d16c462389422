"""The published implementations, run as their authors run them: what the ports are compared with.

Those made for a port's configuration have random weights from a fixed seed; all raise ImportError where torch or
their package is absent.
"""

import contextlib
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import soundfile

Scorer = Callable[[Sequence[Path]], np.ndarray]  # files -> [files, heads]


def nisqa(checkpoint: Path) -> Scorer:
    """The PyPI package ``nisqa``: file by file through its own loader, spectrogram, segmentation and model.

    Raises ImportError where the package or torch is absent.
    """
    import torch

    library, model, args = nisqa_model(checkpoint)
    front = {k: args[f"ms_{k}"] for k in ("sr", "n_fft", "hop_length", "win_length", "n_mels", "fmax")}
    segments = (args["ms_seg_length"], args["ms_seg_hop_length"], args["ms_max_segments"])
    heads = 5 if args["dim"] else 1

    class Files(torch.utils.data.Dataset):
        """Items as the package's own data set makes them, without a pandas table."""

        def __init__(self, files: Sequence[Path]):
            self.files, self.df = [str(file) for file in files], {}

        def __len__(self):
            return len(self.files)

        def __getitem__(self, i):
            mel = library.get_librosa_melspec(self.files[i], **front)
            windows, count = library.segment_specs(self.files[i], mel, *segments)
            return windows, np.full(heads, np.nan, np.float32), (i, count)

    predict = library.predict_dim if args["dim"] else library.predict_mos
    return lambda files: predict(model, Files(files), 1, torch.device("cpu"))[0].reshape(len(files), heads)


def nisqa_model(checkpoint: Path) -> tuple[Any, Any, dict[str, Any]]:
    """The package's library, its model with the weights of `checkpoint`, and the checkpoint's settings.

    What the package imports only for plots and tables is replaced while it loads.
    """
    import torch

    library = import_without("nisqa.NISQA_lib", ("pandas", "matplotlib", "matplotlib.pyplot", "tqdm"))
    saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
    args, kind = saved["args"], getattr(library, saved["args"]["model"])
    names = kind.__init__.__code__.co_varnames
    model = kind(**{k: v for k, v in args.items() if k in names})
    model.load_state_dict(saved["model_state_dict"])
    return library, model.eval(), args


def dnsmos(*keys: str) -> Scorer:
    """The PyPI package ``speechmos``, file by file; `keys` are the results wanted, of one of its two networks.

    The package always runs both; the one that was not asked for is left out, so that it costs nothing here.
    Raises ImportError where the package is absent.
    """
    from speechmos import dnsmos as library

    folder = Path(library.__file__).parent / "dnsmos_models"
    model = library.DNSMOS(str(folder / "sig_bak_ovr.onnx"), str(folder / "model_v8.onnx"))
    left_out = MagicMock(run=lambda *_: [np.zeros((1, 3))])
    if keys == ("p808_mos",):
        model.onnx_sess = left_out
    else:
        model.p808_onnx_sess, model.audio_melspec = left_out, lambda audio: np.zeros((1, 1))

    def score(file: Path) -> list[float]:
        wav, rate = soundfile.read(file, dtype="float32")
        found = model(wav, rate, False)
        return [found[key] for key in keys]

    return lambda files: np.array([score(file) for file in files])


def distillmos() -> Callable[[np.ndarray], float]:
    """The PyPI package ``distillmos``: a function of ``wav [T]`` at 16 kHz.

    torchaudio, which it reads files with, is left out. Raises ImportError where the package, ``xls-r-sqa``, which it
    needs, or torch is absent.
    """
    import torch

    library = import_without("distillmos.sqa", ("torchaudio",))
    with contextlib.redirect_stdout(None):  # it says where it found its weights
        model = library.ConvTransformerSQAModel().eval()

    def score(wav: np.ndarray) -> float:
        with torch.no_grad():
            return model(torch.tensor(wav)[None]).item()

    return score


def streaming_graph(file: Path, threads: int | None = None) -> Callable[[np.ndarray], np.ndarray]:
    """A function of ``frames [n, ...]`` that runs a TensorFlow Lite graph on one frame after the other.

    It starts anew at every call: the interpreter keeps the convolutions' state and cannot be reset.
    Raises ImportError where the interpreter is absent.
    """
    from ai_edge_litert.interpreter import Interpreter

    def run(frames: np.ndarray) -> np.ndarray:
        graph = Interpreter(str(file), num_threads=threads)
        graph.allocate_tensors()
        source, sink = graph.get_input_details()[0], graph.get_output_details()[0]["index"]
        out = []
        for frame in frames:
            graph.set_tensor(source["index"], frame.reshape(source["shape"]))
            graph.invoke()
            out.append(graph.get_tensor(sink).ravel())
        return np.array(out)

    return run


def speech_encoder(kind: str, config: Any, tensors: Mapping[str, np.ndarray] | None = None) -> Any:
    """Hugging Face's `kind` ("Wav2Vec2", "Hubert", "WavLM") of a :class:`ports.wav2vec2.Config`.

    `tensors` have its names, with weight norm's as ``weight_g`` and ``weight_v``; None: its own initialisation.
    """
    import torch
    import transformers

    options = {"num_buckets": config.buckets, "max_bucket_distance": config.max_distance} if config.buckets else {}
    settings = getattr(transformers, f"{kind}Config")(
        hidden_size=config.channels,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=config.feed_forward,
        conv_dim=(config.conv_channels,) * len(config.conv),
        conv_kernel=[kernel for kernel, _ in config.conv],
        conv_stride=[stride for _, stride in config.conv],
        conv_bias=config.conv_bias,
        feat_extract_norm=config.conv_norm,
        do_stable_layer_norm=config.norm_first,
        num_conv_pos_embeddings=config.position_kernel,
        num_conv_pos_embedding_groups=config.position_groups,
        **options,
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}Model")(settings).eval()
    if tensors is not None:
        weights = "parametrizations.weight.original"
        new = {k.replace("weight_g", f"{weights}0").replace("weight_v", f"{weights}1"): v for k, v in tensors.items()}
        found = model.load_state_dict({k: torch.tensor(v) for k, v in new.items()}, strict=False)
        assert set(found.missing_keys) <= {"masked_spec_embed"} and not found.unexpected_keys
    return model


def last_hidden_state(model: Any, wav: np.ndarray) -> Any:
    """The encoder's output of ``wav [T]``: a tensor [1, F, C]."""
    import torch

    with torch.no_grad():
        return model(torch.tensor(wav)[None]).last_hidden_state


def utmos_head(channels: int, hidden: int, projection: int) -> Any:
    """What UTMOS22 has after the encoder, put together of PyTorch's layers under its names.

    Its ``score`` takes features ``[1, F, C]``.
    """
    import torch

    class Head(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.domain_emb, self.judge_emb = (torch.nn.Parameter(torch.randn(1, 128)) for _ in range(2))
            self.blstm = torch.nn.LSTM(channels + 256, hidden, batch_first=True, bidirectional=True)
            self.projection = torch.nn.Sequential(
                torch.nn.Linear(2 * hidden, projection), torch.nn.ReLU(), torch.nn.Linear(projection, 1)
            )

        def inputs(self, features):
            beside = [x.expand(features.shape[1], -1)[None] for x in (self.domain_emb, self.judge_emb)]
            return torch.cat([features, *beside], dim=2)

        @torch.no_grad()
        def score(self, features):
            return self.projection(self.blstm(self.inputs(features))[0]).mean(1)[0].numpy() * 2 + 3

    torch.manual_seed(0)
    return Head().eval()


def ssl_mos_head(channels: int) -> Any:
    """What SSL-MOS has after the encoder; its ``score`` takes features ``[1, F, C]``."""
    import torch

    class Head(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.output_layer = torch.nn.Linear(channels, 1)

        @torch.no_grad()
        def score(self, features):
            return self.output_layer(features.mean(1))[0].numpy()

    torch.manual_seed(0)
    return Head().eval()


def saved(tensors: Mapping[str, Any], path: Path) -> dict[str, Path]:
    """Written as PyTorch writes checkpoints: file name -> path, as the ports' factories take it."""
    import torch

    torch.save(dict(tensors), path)
    return {path.name: path}


def encodec_library() -> ModuleType:
    """The PyPI package ``encodec``, whose import of torchaudio only serves resampling."""
    return import_without("encodec", ("torchaudio",))


def encodec(config: Any) -> Any:
    """The model of a :class:`ports.encodec.Config`."""
    import torch

    library = encodec_library()
    shared = {
        "channels": config.audio,
        "norm": "weight_norm" if config.causal else "time_group_norm",
        "causal": config.causal,
        "dimension": config.dimension,
        "n_filters": config.filters,
        "ratios": list(config.ratios),
    }
    torch.manual_seed(0)
    quantizer = library.quantization.ResidualVectorQuantizer(config.dimension, max(config.stages), config.entries)
    model = library.EncodecModel(
        library.modules.SEANetEncoder(**shared),
        library.modules.SEANetDecoder(**shared),
        quantizer,
        [1.0],
        config.sample_rate,
        config.audio,
        normalize=not config.causal,
        segment=1.0 if config.segment else None,
    ).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("embed"):
                tensor.normal_(std=0.1)
            elif name.endswith(("weight_g", "norm.weight")):
                tensor.mul_(torch.rand_like(tensor) + 0.8)
            elif name.endswith("bias"):
                tensor.normal_(std=0.1)
    return model


def encodec_encode(model: Any, wav: np.ndarray) -> np.ndarray:
    """Latent ``[N, C]`` of one segment ``wav [T]``, with the loudness where the model has it."""
    import torch

    with torch.no_grad():
        x = torch.tensor(wav).expand(model.channels, -1)[None]
        scale = 1e-8 + x.mean(1).square().mean().sqrt() if model.normalize else torch.ones(())
        z = model.encoder(x / scale)[0].T
        return (torch.cat([z, scale.expand(len(z), 1)], 1) if model.normalize else z).numpy()


def encodec_decode(model: Any, z: np.ndarray) -> np.ndarray:
    """The waveform ``[T]`` of a segment's latent ``z [N, C]``, the mean of its channels."""
    import torch

    with torch.no_grad():
        size = model.encoder.dimension
        out = model.decoder(torch.tensor(z[:, :size].T[None]))[0].mean(0).numpy()
    return out * z[0, size] if model.normalize else out


def dac_library() -> ModuleType:
    """The package ``descript-audio-codec``; its audiotools and argbind serve files and command lines only."""
    import torch

    audiotools = MagicMock()
    audiotools.ml.BaseModel = type("BaseModel", (torch.nn.Module,), {"INTERN": [], "EXTERN": []})
    absent = {"audiotools": audiotools, "audiotools.ml": audiotools.ml, "audiotools.core": audiotools.core}
    with _replaced(absent | {"argbind": MagicMock()}):
        return importlib.import_module("dac")


def dac_settings(config: Any) -> dict[str, Any]:
    """The official model's own settings of a :class:`ports.dac.Config`."""
    return {name: list(v) if isinstance(v, tuple) else v for name, v in list(config._asdict().items())[3:]}


def dac(config: Any) -> Any:
    """The model of a :class:`ports.dac.Config`."""
    import torch

    library = dac_library()
    torch.manual_seed(0)
    model = library.DAC(**dac_settings(config)).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith(("weight_g", "alpha")):
                tensor.mul_(torch.rand_like(tensor) + 0.8)
            elif name.endswith("bias"):
                tensor.normal_(std=0.1)
    return model


def dac_encode(model: Any, wav: np.ndarray) -> np.ndarray:
    """Latent ``[N, C]`` of ``wav [T]``."""
    import torch

    with torch.no_grad():
        return model.encoder(model.preprocess(torch.tensor(wav)[None, None], None))[0].T.numpy()


def dac_decode(model: Any, z: np.ndarray) -> np.ndarray:
    """The waveform ``[T]`` of a latent ``z [N, C]``."""
    import torch

    with torch.no_grad():
        return model.decode(torch.tensor(z.T[None]))[0, 0].numpy()


def mimi_settings(config: Any) -> Any:
    """Hugging Face's configuration of a :class:`ports.mimi.Config`."""
    import transformers

    return transformers.MimiConfig(
        num_filters=config.filters,
        upsampling_ratios=list(config.ratios),
        hidden_size=config.dimension,
        upsample_groups=config.dimension,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        intermediate_size=config.feed_forward,
        sliding_window=config.window,
        num_quantizers=config.codebooks,
        codebook_size=config.entries,
        codebook_dim=config.codebook_dimension,
        vector_quantization_hidden_dimension=config.codebook_dimension,
    )


def mimi(config: Any) -> Any:
    """Hugging Face's ``MimiModel`` of a :class:`ports.mimi.Config`, every tensor drawn at random."""
    import torch
    import transformers

    torch.manual_seed(0)
    model = transformers.MimiModel(mimi_settings(config)).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("cluster_usage"):
                tensor.uniform_(0.5, 3.0)[0] = 0.0  # an entry that was never used
            elif name.endswith(("layernorm.weight", "scale")):
                tensor.uniform_(0.5, 1.5)
            elif name.endswith(("embed_sum", "bias")):
                tensor.normal_(std=1.0 if name.endswith("embed_sum") else 0.3)
            elif not name.endswith("initialized"):
                tensor.normal_(std=tensor[0].numel() ** -0.5)
            if name.endswith("embed_sum"):
                tensor[0] = 0.0
    return model


_MIMI_PARTS = ("semantic_residual_vector_quantizer", "acoustic_residual_vector_quantizer")


def mimi_projected(model: Any, latents: Any) -> np.ndarray:
    """The encoder's output ``[1, C, N]``, a tensor, as the two quantisers see it ``[N, C]``."""
    import torch

    with torch.no_grad():
        return torch.cat([getattr(model.quantizer, part).input_proj(latents) for part in _MIMI_PARTS], 1)[0].T.numpy()


def mimi_encode(model: Any, wav: np.ndarray) -> np.ndarray:
    """Latent ``[N, C]`` of ``wav [T]``, as the two quantisers see it."""
    import torch

    with torch.no_grad():
        return mimi_projected(model, model.encoder(torch.tensor(wav)[None, None]).latents)


def mimi_decode(model: Any, z: np.ndarray) -> np.ndarray:
    """The waveform ``[T]`` of what the two quantisers made, ``z [N, C]``."""
    import torch

    with torch.no_grad():
        halves = torch.tensor(z.T[None]).chunk(2, 1)
        summed = sum(getattr(model.quantizer, p).output_proj(x) for p, x in zip(_MIMI_PARTS, halves, strict=True))
        return model.decoder(summed).audio_values[0, 0].numpy()


def ge2e() -> Any:
    """Resemblyzer's ``VoiceEncoder``, without what it trims silence with."""
    import scipy.ndimage

    morphology = ModuleType("scipy.ndimage.morphology")  # where older versions of SciPy had it
    morphology.binary_dilation = scipy.ndimage.binary_dilation
    with _replaced({"webrtcvad": MagicMock(), "scipy.ndimage.morphology": morphology}):
        return importlib.import_module("resemblyzer").VoiceEncoder("cpu", verbose=False)


def import_without(module: str, unneeded: Sequence[str]) -> ModuleType:
    """A module, with stand-ins for what it imports and does not need here, where that is absent."""
    absent = {}
    for name in unneeded:
        try:
            importlib.import_module(name)
        except ImportError:
            absent[name] = MagicMock()
    with _replaced(absent):
        return importlib.import_module(module)


@contextlib.contextmanager
def _replaced(modules: Mapping[str, Any]):
    """While it lasts, importing these gives the stand-ins."""
    kept = {name: sys.modules[name] for name in modules if name in sys.modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]
        sys.modules.update(kept)
