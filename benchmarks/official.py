"""The published implementations, run as their authors run them: what the ports are compared with."""

import contextlib
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
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


def import_without(module: str, unneeded: Sequence[str]) -> Any:
    """A module, with stand-ins for what it imports but does not need here where that is absent."""
    stand_ins = {}
    for name in unneeded:
        try:
            importlib.import_module(name)
        except ImportError:
            stand_ins[name] = MagicMock()
    sys.modules.update(stand_ins)
    try:
        return importlib.import_module(module)
    finally:
        for name in stand_ins:
            del sys.modules[name]
