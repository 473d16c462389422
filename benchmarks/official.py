"""The published implementations, run as their authors run them: what the ports are compared with."""

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np

Scorer = Callable[[Sequence[Path]], np.ndarray]  # files -> [files, heads]


def nisqa(checkpoint: Path) -> Scorer:
    """The PyPI package ``nisqa``: file by file through its own loader, spectrogram, segmentation and model.

    Raises ImportError where the package or torch is absent. What the package imports only for plots and
    tables is replaced while it loads.
    """
    import torch

    library = _import_without("nisqa.NISQA_lib", ("pandas", "matplotlib", "matplotlib.pyplot", "tqdm"))
    saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
    args, kind = saved["args"], getattr(library, saved["args"]["model"])
    names = kind.__init__.__code__.co_varnames
    model = kind(**{k: v for k, v in args.items() if k in names})
    model.load_state_dict(saved["model_state_dict"])
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


def _import_without(module: str, unneeded: Sequence[str]):
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
