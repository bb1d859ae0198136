"""Writes docs/settings.md."""

from pathlib import Path

from supervisor.settings import document

target = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
target.write_text(document(), encoding="utf-8")
print(f"wrote {target}")
