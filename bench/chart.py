"""Charts of figures, as SVG or PNG by the name's end. Needs matplotlib, of the extra `bench`."""

from pathlib import Path

from bench.report import Chart

_OURS = "#1f6feb"
_OTHERS = "#9aa4b2"


def draw(chart: Chart, file: Path) -> None:
    """Write *chart* to *file*.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("charts need matplotlib: pip install 'pg-supervisor[bench]'") from None
    matplotlib.use("agg")
    # The same figures give the same file.
    matplotlib.rcParams.update({"svg.hashsalt": "bench", "svg.fonttype": "none", "font.size": 9.0})
    from matplotlib import pyplot

    height = 0.9 + 0.32 * len(chart.series) if chart.kind == "bars" else 3.2
    figure, axes = pyplot.subplots(figsize=(7.2, height), layout="constrained")
    if chart.kind == "bars":
        names = list(chart.series)
        values = [chart.series[name][0] for name in names]
        colours = [_OURS if name.startswith("service") else _OTHERS for name in names]
        spread = chart.spread or {}
        errors = [
            [max(0.0, value - spread.get(name, (value, value))[0]) for name, value in zip(names, values, strict=True)],
            [max(0.0, spread.get(name, (value, value))[1] - value) for name, value in zip(names, values, strict=True)],
        ]
        bars = axes.barh(names, values, color=colours, xerr=errors, ecolor="#444444", capsize=2)
        axes.bar_label(bars, labels=[f" {value:,.4g}" if value < 1000 else f" {value:,.0f}" for value in values])
        axes.invert_yaxis()
        axes.set_xlim(0, max(value + high for value, high in zip(values, errors[1], strict=True)) * 1.15)
        axes.set_xlabel(chart.unit)
    else:
        for name, line in chart.series.items():
            axes.plot(range(len(line)), line, marker="o", markersize=3, label=name)
        axes.set_xticks(range(len(chart.x)), list(chart.x))
        axes.set_xlabel(chart.x_title)
        axes.set_ylabel(chart.unit)
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
    axes.set_title(chart.title, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    pyplot.close(figure)
