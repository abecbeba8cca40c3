"""What a bundle says of its parts: the bill of materials for programs
(CycloneDX 1.5) and the list of notices for people.
"""

from __future__ import annotations

import json
import re
import uuid
from datetime import datetime, timezone
from typing import Any

from .parts import Part

# An SPDX expression; anything else is the name of a licence.
_EXPRESSION = re.compile(r"\(*[\w.+-]+\)*( (OR|AND|WITH) \(*[\w.+-]+\)*)*")


def bill_of_materials(server: Part, parts: list[Part], moment: int) -> bytes:
    """The same parts at the same moment make the same bytes."""
    refs = sorted(part.ref for part in parts)
    # Crates name what they need; the server needs the rest itself.
    needed = {ref for part in [server, *parts] for ref in part.needs}
    direct = sorted({*server.needs, *(ref for ref in refs if ref not in needed)})
    components = [_component(part) for part in sorted(parts, key=lambda part: part.ref)]
    stated = json.dumps([_component(server), components], sort_keys=True)
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_OID, f"{moment} {stated}").urn,
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": _component(server),
        },
        "components": components,
        "dependencies": [
            {"ref": server.ref, "dependsOn": direct},
            *({"ref": part.ref, "dependsOn": list(part.needs)} for part in sorted(parts, key=lambda part: part.ref)),
        ],
    }
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def _component(part: Part) -> dict[str, Any]:
    expression = bool(_EXPRESSION.fullmatch(part.licence))
    licence = {"expression": part.licence} if expression else {"license": {"name": part.licence}}
    told = {"type": part.kind, "bom-ref": part.ref, "name": part.name, "version": part.version, "licenses": [licence]}
    return {**told, **part.about}


def notices(server: Part, parts: list[Part]) -> bytes:
    """THIRD_PARTY.md."""
    kinds = {
        "Models": [part for part in parts if part.kind == "machine-learning-model"],
        "Libraries": [part for part in parts if part.kind != "machine-learning-model"],
    }
    lines = [
        "# What others made",
        "",
        f"Dichroic {server.version} is under {server.licence} (`LICENSE`). In it, or run to build it, is this:",
        "Each licence's text, with the names of those who gave it, lies in the folder named beside it.",
    ]
    for title, listed in kinds.items():
        lines += ["", f"## {title}", "", "| What | Version | Licence | Texts |", "| --- | --- | --- | --- |"]
        for part in sorted(listed, key=lambda part: (part.name.lower(), part.version)):
            name = part.about.get("description", part.name)
            lines.append(f"| {name} | {part.version} | {part.licence} | `licences/{part.folder}` |")
    return ("\n".join(lines) + "\n").encode()
