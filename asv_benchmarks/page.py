"""The performance page: what `asv publish` wrote, and the pictures of `lqcd bench`, as static HTML that opens from the disk.

    python asv_benchmarks/page.py --asv .asv/html --plots PLOTS --rows ROWS.jsonl --output FOLDER

asv's own page asks for its numbers by XMLHttpRequest, which browsers refuse to pages from the disk, and for its scripts from other
hosts. This one has its numbers inside and draws its curves as SVG in the page: it loads nothing but the pictures beside it.
"""

from __future__ import annotations

import argparse
import datetime
import html
import itertools
import json
import math
import shutil
import sys
from pathlib import Path
from urllib.parse import quote

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #222; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; font-size: 13px; } td, th { padding: .15rem .7rem; text-align: right; }
th { border-bottom: 1px solid #999; } td:first-child, th:first-child { text-align: left; }
tr:nth-child(even) td { background: #f5f6f8; } td.none { color: #999; }
details { margin: .3rem 0; } summary { cursor: pointer; } summary small { color: #666; }
img { max-width: 100%; } pre { font-size: 11px; overflow-x: auto; background: #f5f6f8; padding: .7rem; } svg { vertical-align: middle; }
"""


def read_asv(folder: Path) -> tuple[dict, dict[str, dict]]:
    """(asv's index, series by benchmark: parameters -> [(commit's time in ms, value)])."""
    index = json.loads((folder / "index.json").read_text())
    revisions = {int(k): int(v) for k, v in index["revision_to_date"].items()}
    series: dict[str, dict] = {}
    for state in index["graph_param_list"]:
        for name, benchmark in index["benchmarks"].items():
            path = folder / graph_path(state, name)
            if not path.exists():
                continue
            points = json.loads(path.read_text())
            combinations = list(itertools.product(*benchmark["params"])) or [()]
            into = series.setdefault(name, {c: [] for c in combinations})
            for revision, values in points:
                values = values if isinstance(values, list) else [values]
                for combination, value in zip(combinations, values, strict=True):
                    if value is not None:
                        into[combination].append((revisions[revision], float(value)))
    return index, series


def graph_path(state: dict, name: str) -> str:
    """Where asv keeps the graph of a benchmark for a state of the machine (asv.graph.Graph.get_file_path)."""
    from asv.graph import Graph

    return Graph.get_file_path(state, name) + ".json"


def number(value: float, unit: str) -> str:
    """A value with its unit; seconds in a unit that fits."""
    if unit == "seconds":
        for scale, name in ((1, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")):
            if value >= scale or name == "ns":
                return f"{value / scale:.3g} {name}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def spark(points) -> str:
    """A curve over the commits as inline SVG; empty for a single point."""
    points = sorted(p for p in points if math.isfinite(p[1]))
    if len(points) < 2:
        return ""
    values = [v for _, v in points]
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    where = " ".join(
        f"{4 + 112 * k / (len(points) - 1):.1f},{20 - 16 * (v - low) / span:.1f}" for k, (_, v) in enumerate(points)
    )
    return f'<svg width="120" height="24" role="img"><polyline points="{where}" fill="none" stroke="#2a6fb0" stroke-width="1.5"/></svg>'


def benchmark_table(benchmark: dict, series: dict) -> str:
    """Newest value of every combination that has one, with its curve; those without are counted."""
    names = [html.escape(n) for n in benchmark["param_names"]] if benchmark["params"] else []
    rows, empty = [], 0
    for combination, points in series.items():
        points = [p for p in points if math.isfinite(p[1])]
        if not points:
            empty += 1
            continue
        cells = "".join(f"<td>{html.escape(str(c).strip(chr(39)))}</td>" for c in combination)
        newest = max(points)[1]
        rows.append(f"<tr>{cells}<td>{number(newest, benchmark['unit'])}</td><td>{spark(points)}</td></tr>")
    head = "".join(f"<th>{n}</th>" for n in names)
    note = f"<p><small>{empty} combinations without a number here: skipped or not run.</small></p>" if empty else ""
    if not rows:
        return note
    return f"<table><tr>{head}<th>{html.escape(benchmark['unit'])}</th><th></th></tr>{''.join(rows)}</table>{note}"


def sweep_text(path: Path) -> str:
    """The rows of `lqcd bench` as it prints them, with the machine above."""
    from lqcd_core.bench import sweep, table

    head, rows = sweep.read(path)
    backends = head["settings"]["backends"]
    lines = [f"{k:<11} {v}" for k, v in {**head["machine"], "date": head["date"], "load": head["load"]}.items()]
    for threads, limits in head["limits"].items():
        found = [f"{x['name']} {x['value']:.0f} GFLOP/s" for x in limits["peaks"]]
        found += [f"{x['name']} {x['value']:.0f} GB/s" for x in limits["levels"]]
        lines.append(f"limits, {threads} thread(s): " + ", ".join(found))
    lines += ["", f"$ {' '.join(head['command'])}", "", table.header(backends, head["settings"]["threads"])]
    previous = None
    for row in rows:
        if previous not in (None, row["lattice"]):
            lines.append(table.separator(backends))
        previous = row["lattice"]
        lines.append(table.row(row, backends))
    return "\n".join(lines)


def build(asv: Path, output: Path, plots: Path | None, rows: Path | None) -> Path:
    """Write ``index.html`` and copy the pictures beside it; the page's path."""
    output.mkdir(parents=True, exist_ok=True)
    index, series = read_asv(asv)
    body = ["<h1>lqcd_core: performance</h1>"]
    body.append(
        "<p>Speed counts 1320 flops per site and right-hand side for the Wilson hopping term; GB/s count each link and spinor "
        "once; a share of the roofline is a share of min(multiply-add peak, flops per byte x bandwidth where the fields live), both "
        "measured on the same machine. Model values are predictions, not measurements.</p>"
    )
    if rows is not None:
        body.append(f"<h2>Sweep</h2><pre>{html.escape(sweep_text(rows))}</pre>")
    if plots is not None:
        body.append("<h2>Pictures</h2>")
        for picture in sorted(plots.glob("*.png")):
            shutil.copy(picture, output / picture.name)
            vector = picture.with_suffix(".svg")
            link = ""
            if vector.exists():
                shutil.copy(vector, output / vector.name)
                link = f' (<a href="{quote(vector.name)}">SVG</a>)'
            body.append(
                f'<p>{html.escape(picture.stem)}{link}<br><img src="{quote(picture.name)}" alt="{html.escape(picture.stem)}"></p>'
            )
    machines = ", ".join(sorted({s.get("machine", "?") for s in index["graph_param_list"]}))
    body.append(
        f"<h2>Benchmarks</h2><p>Machine {html.escape(machines)}; newest value, and the curve over commits where there are several.</p>"
    )
    for name in sorted(series):
        benchmark, found = index["benchmarks"][name], series[name]
        count = sum(bool(v) for v in found.values())
        body.append(
            f"<details><summary>{html.escape(name)} <small>{count} of {len(found)} combinations</small></summary>"
            f"{benchmark_table(benchmark, found)}</details>"
        )
    made = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes")
    page = output / "index.html"
    page.write_text(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>lqcd_core: performance</title>'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style></head><body>\n'
        + "\n".join(body)
        + f"\n<p><small>Made {made}.</small></p></body></html>\n",
        encoding="utf-8",
    )
    return page


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--asv", type=Path, required=True, help="folder that `asv publish` wrote")
    parser.add_argument("--plots", type=Path, help="folder that `lqcd bench --plot` wrote")
    parser.add_argument("--rows", type=Path, help="file that `lqcd bench --output` wrote")
    parser.add_argument("--output", type=Path, required=True, help="folder of the page")
    a = parser.parse_args()
    if not (a.asv / "index.json").exists():
        print(
            f"{a.asv} holds no index.json: run `asv run` and `asv publish` first (make performance does)",
            file=sys.stderr,
        )
        return 2
    print(build(a.asv, a.output, a.plots, a.rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
