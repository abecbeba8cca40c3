#!/usr/bin/env python3
"""Keeps the medians of `make bench`, and holds later ones beside them.

`cargo bench` leaves its figures in target/criterion. `make bench-compare` prints, for each benchmark, the time beside that of
benches/baseline.json, and how that stands to the benchmarks' common ratio: on another machine everything takes longer or
less, and what stands out is what changed. `--write` makes these figures the baseline. Neither judges: what a difference is
worth, criterion says of two commits on one machine (`--save-baseline`, `--baseline`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "target" / "criterion"
BASELINE = ROOT / "benches" / "baseline.json"


def main() -> None:
    # As a program this file's own folder comes first, where modules of the comparison have common names.
    sys.path[0] = str(ROOT / "scripts")
    from peers import procfs

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="make these figures the baseline")
    options = parser.parse_args()
    now = medians(FIGURES)
    if not now:
        sys.exit(f"baseline: there are no figures in {FIGURES}: run make bench first.")
    if options.write:
        done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
        told = {
            "commit": done.stdout.strip() or "unknown",
            "processor": procfs.processor(Path("/proc/cpuinfo").read_text(encoding="utf-8")),
            "cores": len(os.sched_getaffinity(0)),
            "nanoseconds": now,
        }
        BASELINE.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        print(f"{len(now)} medians written to {BASELINE}")
        return
    if not BASELINE.is_file():
        sys.exit(f"baseline: {BASELINE} is not there: run make bench-compare BASELINE=--write to keep these figures.")
    kept = json.loads(BASELINE.read_text(encoding="utf-8"))
    print(f"Baseline: commit {kept['commit']}, {kept['processor']}, {kept['cores']} cores.\n")
    print("\n".join(table(kept["nanoseconds"], now)))


def medians(figures: Path) -> dict[str, float]:
    """Benchmark → nanoseconds of an iteration, of the last run of each."""
    found = {}
    for path in sorted(figures.rglob("new/estimates.json")):
        name = json.loads((path.parent / "benchmark.json").read_text(encoding="utf-8"))["full_id"]
        estimates = json.loads(path.read_text(encoding="utf-8"))
        found[name] = round(estimates["median"]["point_estimate"], 1)
    return dict(sorted(found.items()))


def table(before: Mapping[str, float], now: Mapping[str, float]) -> Sequence[str]:
    """A line for each benchmark of either side."""
    ratios = {name: now[name] / before[name] for name in before if name in now}
    common = median(ratios.values()) if ratios else 1.0
    lines = [f"| Benchmark | baseline, µs | now, µs | ratio | beside the common {common:.2f} |", "| --- | --- | --- | --- | --- |"]
    for name in sorted({*before, *now}):
        cells = [f"{side[name] / 1000:.1f}" if name in side else "—" for side in (before, now)]
        cells += [f"{ratios[name]:.2f}", f"{ratios[name] / common:.2f}"] if name in ratios else ["—", "—"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
