"""What /proc says of a process. Pure: files are read by others."""

from __future__ import annotations


def ticks(stat: str) -> int:
    """Processor time of a process in clock ticks, its own and the system's for it, from /proc/PID/stat."""
    # The name of the program stands in brackets and may hold anything.
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def resident(status: str) -> float:
    """The resident set in MiB, from /proc/PID/status."""
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == "VmRSS":
            number, unit = value.split()
            if unit != "kB":
                raise ValueError(f"the resident set is in {unit}")
            return int(number) / 1024
    raise ValueError("it has no resident set: the process has ended")


def idle(before: int, after: int, per_second: int, seconds: float) -> dict[str, float]:
    """Processor time in that span beside that of one whole core, both in milliseconds.

    Ticks are whole: up to one more may have been used, and counts, so that a
    server at rest has a figure too.
    """
    return {"used": (after - before + 1) / per_second * 1000, "core": seconds * 1000}
