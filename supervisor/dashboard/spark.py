"""Sparklines: an hour of counts as a small SVG, drawn by the server.

Always true: nothing but numbers and our own words is in the markup, so it may be passed on unescaped. There is no
style in it: colours come from the style sheet.
"""

from collections.abc import Sequence

from markupsafe import Markup, escape

_WIDTH, _HEIGHT = 120, 28


def spark(counts: Sequence[int], kind: str, label: str) -> Markup:
    """Bars, one per count, oldest first.

    Args:
        kind: "good" or "bad": the colour's class.
        label: What is counted, for those who do not see it: "done per minute".
    """
    most = max(counts, default=0)
    step = _WIDTH / max(1, len(counts))
    bars = []
    for index, number in enumerate(counts):
        if number > 0:
            height = max(1.5, (_HEIGHT - 2) * number / most)
            bars.append(f"M{index * step:.1f} {_HEIGHT}v-{height:.1f}h{step * 0.8:.1f}v{height:.1f}z")
    said = (
        f"{label}: {counts[-1] if counts else 0:,} in the minute that runs, {most:,} at most in {len(counts)} minutes"
    )
    return Markup(
        '<svg class="spark {kind}" viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" '
        'aria-label="{said}"><title>{said}</title><path class="base" d="M0 {line}h{width}"/><path d="{bars}"/></svg>'
    ).format(
        kind="bad" if kind == "bad" else "good",
        width=_WIDTH,
        height=_HEIGHT,
        line=_HEIGHT - 0.5,
        said=escape(said),
        bars="".join(bars),
    )
