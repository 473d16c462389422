"""A patching that is killed again and again, each time at another write to its folder, then let through.

    python tests/killed.py LIST FOLDER '{"settings": …, "recipe": …}'

Each line on standard output is what a process was about to do when it killed itself.
"""

import json
import os
import random
import re
import sys
import traceback

import jax
import toys

from jaxhack import parallel, registry
from jaxhack.patch import Recipe, patch

WRITES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir")
# Where each process dies, and at which write there at the latest.
PLACES = (
    ("/run.json", 2),
    ("/rounds/1/latent-toy/universal/(checkpoints|training)", 20),
    ("/rounds/1/latent-toy/universal/(pairs|parts|.rows)", 10),
    ("/rounds/1/fit/(checkpoints|fitting)", 20),
    ("/rounds/2/latent-toy/universal/", 40),
    ("/(patched/|summary)", 6),
)


def die(out: str, place: str, after: int) -> None:
    """Has this process end by `kill -9` at the `after`-th write to what matches `place` in the folder `out`."""
    left = after

    def hook(event: str, args: tuple) -> None:
        nonlocal left
        writes = event in WRITES or (event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR))
        if not writes or isinstance(args[0], int):
            return
        path = os.fsdecode(args[0])
        if not (path.startswith(out) and re.match(place, path.removeprefix(out))):
            return
        left -= 1
        if left == 0:
            if event == "open":  # which may empty the file, before anything is written
                os.close(os.open(path, args[2], 0o644))
            os.write(1, f"{event} {path.removeprefix(out)}\n".encode())
            os.kill(os.getpid(), 9)

    sys.addaudithook(hook)


def main(listed: str, folder: str, given: dict) -> None:
    """An unbroken patching in ``whole``; then one in ``broken``, killed at all :data:`PLACES` and let through.

    The processes are forked before JAX starts anything.
    """
    for attempt in range(len(PLACES) + 2):
        child = os.fork()
        if child == 0:
            try:
                one(listed, folder, given, attempt)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status) != (0 < attempt <= len(PLACES)):
            raise ValueError(f"Process {attempt} ended with status {status}.")


def one(listed: str, folder: str, given: dict, attempt: int) -> None:
    """One process."""
    parallel._run = lambda fn, args, chunk: jax.vmap(fn)(args)  # as the fixture one_device has it
    registry.ENTRIES["toy"] = registry.Entry("predictor", "toys:listed", "toys:NO_WEIGHTS", "")
    out = f"{folder}/{'broken' if attempt else 'whole'}"
    if 0 < attempt <= len(PLACES):
        place, writes = PLACES[attempt - 1]
        die(out, place, random.Random(attempt).randint(1, writes))
    made = {"predictor": "toy", "codecs": [toys.codec()], "recipe": Recipe(**given["recipe"])}
    patch([listed], out=out, resume=os.path.exists(out), **made, **given["settings"])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
