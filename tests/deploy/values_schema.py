"""The part of the chart's schema that is tailerd's own: `python -m tests.deploy.values_schema`.

`config` in the values has the schema of a configuration file, but for what the chart sets itself.
The rest of `helm/values.schema.json` is written by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tailerd.config.documents import schema

FILE = Path(__file__).resolve().parents[2] / "helm/values.schema.json"
SET_BY_THE_CHART = ("state", "http")


def with_config(values: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of values with `config` as the code has it now."""
    config = schema()
    definitions = config.pop("$defs")
    for name in ("HttpConfig", "TlsConfig"):
        del definitions[name]
    for name in SET_BY_THE_CHART:
        del config["properties"][name]
    # Without tables the chart makes one to look at.
    del config["$schema"], config["anyOf"]
    return {
        **values,
        "properties": {**values["properties"], "config": config},
        "$defs": definitions,
    }


def main() -> None:
    """Write the file anew."""
    FILE.write_text(json.dumps(with_config(json.loads(FILE.read_text())), indent=2) + "\n")


if __name__ == "__main__":
    main()
