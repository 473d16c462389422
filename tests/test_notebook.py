"""The notebook runs from its first cell to its last, at a tiny size, and is stored without outputs."""

import json
import os
import subprocess
import sys
from pathlib import Path

NOTEBOOK = Path(__file__).parents[1] / "experiments" / "quickstart.ipynb"


def test_outputs_are_stripped():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
    assert {cell["cell_type"] for cell in cells} == {"code", "markdown"}


def test_it_runs(tmp_path):
    script = (
        "import sys, nbformat, nbclient\n"
        "book = nbformat.read(sys.argv[1], as_version=4)\n"
        "nbclient.NotebookClient(book, timeout=500, kernel_name='python3').execute()\n"
        "nbformat.write(book, sys.argv[2])\n"
    )
    environment = os.environ | {"JAXHACK_TINY": "1", "PYTHONPATH": str(NOTEBOOK.parents[1])}
    environment["XLA_FLAGS"] = ""  # one device, as where it is read
    environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # as the marker `quick_compilation` does
    done = tmp_path / "done.ipynb"
    subprocess.run([sys.executable, "-c", script, NOTEBOOK, done], env=environment, check=True, cwd=tmp_path)
    cells = json.loads(done.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    text = "".join("".join(output.get("text", "")) for output in outputs)
    assert "attacker 0:" in text and "random:" in text
