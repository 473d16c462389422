"""Seconds of a step of k attackers trained together, beside k times one.

python -m benchmarks.bench_attackers --models ../shared/models --speech ../shared/speech --out attackers.json
"""

from pathlib import Path
from typing import Any

import click

from benchmarks import timing
from benchmarks.bench_grpo import FULL, TINY, Job, real_job

NUMBERS = (1, 2, 4, 5, 8)


def bench(job: Job, numbers: tuple[int, ...], repeats: int) -> dict[str, Any]:
    """Times a step of each number k of attackers, 1 among them."""
    calls, compile_s = {}, {}
    for k in numbers:
        arguments = job.arguments(k)
        run, compile_s[k] = timing.compiled(job.step, *arguments)
        calls[str(k)] = lambda run=run, arguments=arguments: run(*arguments)
    spent = timing.in_turns(calls, repeats)
    rows: list[dict[str, Any]] = []
    for k in numbers:
        seconds = spent[str(k)]
        each = {"attacker_step_s": seconds["median_s"] / k}
        ratio = {"of_k_times_one": each["attacker_step_s"] / spent["1"]["median_s"]}
        rows.append({"attackers": k, **seconds, **each, **ratio, "compile_s": compile_s[k]})
    return {**job.setup.settings.__dict__, "repeats": repeats, "rows": rows}


@click.command(help=__doc__.splitlines()[0])
@timing.options
def main(models: Path, speech: Path, tiny: bool, repeats: int | None, out: Path | None) -> None:
    size, numbers = (TINY, NUMBERS[:2]) if tiny else (FULL, NUMBERS)
    job = real_job(models, speech, size, size.batch + max(numbers) - 1)  # no two attackers get the same batch
    result = bench(job, numbers, repeats or size.repeats)
    result["crop_seconds"] = size.seconds
    columns = {"attackers": "", "median_s": ".3f", "min_s": ".3f", "max_s": ".3f"}
    columns |= {"attacker_step_s": ".3f", "of_k_times_one": ".3f", "compile_s": ".1f"}
    title = f"a GRPO step of k attackers: {size.batch} crops × {size.group} draws × {size.seconds:g} s each"
    timing.publish(result, f"{title}, median of {result['repeats']}", columns, out)


if __name__ == "__main__":
    main()
