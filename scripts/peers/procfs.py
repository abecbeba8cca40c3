"""What /proc says of a process. Pure: files are read by others."""

from __future__ import annotations


# What decides how fast products of whole numbers are, by the flags that a processor has for it.
EXTENSIONS = {
    "flags": {"AVX2": {"avx2"}, "AVX-512": {"avx512f"}, "VNNI": {"avx512_vnni", "avx_vnni"}, "AMX": {"amx_int8"}},
    "Features": {"dot products": {"asimddp"}, "I8MM": {"i8mm"}, "SVE": {"sve"}},
}


def processor(cpuinfo: str) -> str:
    """Name and extensions of the first processor in /proc/cpuinfo."""
    found: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            found.setdefault(key.strip(), value.strip())
    name = found.get("model name", "a processor without a name")
    for key, kinds in EXTENSIONS.items():
        if key in found:
            has = set(found[key].split())
            return f"{name} ({', '.join(kind if flags & has else f'no {kind}' for kind, flags in kinds.items())})"
    return name


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
