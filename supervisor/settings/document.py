"""docs/settings.md, made of the settings; `python -m supervisor.settings` writes it."""

from __future__ import annotations

from supervisor.settings.environment import BROKERS, SECRETS, WORDS, variable
from supervisor.settings.fields import Fields


def document() -> str:
    """docs/settings.md, from the fields."""
    lines = [
        "# Settings",
        "",
        "Written by `python -m supervisor.settings`; do not edit. Each setting is an environment variable; durations",
        "are in seconds (`_S`). Secrets may also be given as a file that holds them: "
        + ", ".join(f"`{variable(field)}_FILE`" for field in SECRETS + WORDS + BROKERS)
        + ".",
        "A setting that cannot be used stops the start with a line per problem.",
        "",
        "| Variable | Default | Meaning |",
        "|---|---|---|",
    ]
    for field, info in Fields.model_fields.items():
        extra = info.json_schema_extra
        default = info.default
        if isinstance(extra, dict) and extra.get("says"):
            shown = str(extra["says"])
        elif field == "queues":
            shown = "`*`"
        elif isinstance(default, tuple):
            shown = f"`{','.join(default)}`"
        else:
            shown = f"`{default:g}`" if type(default) is float else f"`{str(default).lower()}`"
        lines.append(f"| `{variable(field)}` | {shown} | {info.description} |")
    return "\n".join(lines) + "\n"
