#!/usr/bin/env python3
"""The charts of docs/CONDENSE_POLICY.md from records: Vega-Lite specs, drawn to SVG (vega_svg.py). The same records give the
same bytes.

usage: scripts/fidelity_charts.py RECORDS_DIR… [--out docs]
"""
import argparse
import statistics
import sys
from pathlib import Path

import vega_svg
from fidelity_records import PREFIXES, SUBJECTS, geometric_mean, name_of, read_cells, read_share
from fidelity_table import sparse_only

ROOT = Path(__file__).resolve().parent.parent
COLOURS = {"condense": "#0a5ed7", "condense, rotation=on": "#38bdf8", "topk": "#15803d", "oracle": "#c2410c",
           "mean": "#6b7280", "quest": "#a16207"}
LABELS = {"condense": "condense: rows by codes", "condense, rotation=on": "condense, rotation=on: codes along axes",
          "topk": "topk: the truly best rows", "oracle": "oracle: the truly heaviest blocks",
          "mean": "mean: blocks by mean key", "quest": "quest: blocks by key bounds"}
TITLES = {"smollm2": "SmolLM2-135M, 7,904 tokens", "qwen": "Qwen2.5-Coder-0.5B, 8,192 tokens"}


def series_of(policy):
    """What a policy's points are joined by: all but the budget."""
    keys = [key for key in policy.partition(":")[2].split(",") if key and not key.startswith("budget=")]
    return ", ".join([name_of(policy), *keys])


def points(cells, teacher):
    """One a (model, policy) that every pinned prefix has, and the control's KL a model."""
    for subject in SUBJECTS:
        mine = [cells[subject.name, prefix.name] for prefix in PREFIXES]
        for policy in sorted(set.intersection(*(set(cell) for cell in mine)) - {"dense"}):
            records = [cell[policy][teacher] for cell in mine]
            kls = [record["kl_mean"] for record in records]
            name = series_of(policy)
            yield {"model": TITLES[subject.name], "policy": LABELS.get(name, name), "name": name,
                   "bytes": 100 * statistics.fmean(read_share(record) for record in records),
                   "kl": geometric_mean(kls), "low": min(kls), "high": max(kls),
                   "different": 100 * (1 - statistics.fmean(record["tf_match"] for record in records))}


def chart(cells, teacher, title):
    """KL over bytes read, log over linear: the geometric mean of the prefixes, and from the least to the greatest."""
    every = list(points(cells, teacher))
    data = [point for point in every if point["name"] in LABELS]
    control = [point for point in every if point["name"] == "control"]
    names = [name for name in LABELS if any(point["name"] == name for point in data)]
    x = {"field": "bytes", "type": "quantitative", "title": "bytes read, % of dense attention's", "scale": {"domain": [2, 13]},
         "axis": {"values": [3, 5, 8, 12]}}
    y = {"field": "kl", "type": "quantitative", "title": "KL to dense, nats", "scale": {"type": "log"},
         "axis": {"format": "~g", "tickCount": 5}}
    colour = {"field": "policy", "type": "nominal", "title": None,
              "scale": {"domain": [LABELS[name] for name in names], "range": [COLOURS[name] for name in names]},
              "legend": {"orient": "bottom", "columns": 2, "labelLimit": 300}}
    lines = {"mark": {"type": "line", "point": True}, "encoding": {"x": x, "y": y, "color": colour}}
    ranges = {"mark": {"type": "rule", "opacity": 0.5},
              "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour}}
    floor = {"transform": [{"filter": "datum.name == 'control'"}], "layer": [
        {"mark": {"type": "rule", "strokeDash": [4, 4], "color": "#333333"}, "encoding": {"y": y}},
        {"mark": {"type": "text", "align": "left", "dy": -6, "color": "#333333", "text": "dense in another order of summation"},
         "encoding": {"y": y, "x": {"value": 4}}}]}
    only = {"transform": [{"filter": "datum.name != 'control'"}], "layer": [ranges, lines]}
    return {"$schema": "https://vega.github.io/schema/vega-lite/v6.json", "title": {"text": title, "anchor": "start"},
            "background": "white", "data": {"values": data + control},
            "facet": {"column": {"field": "model", "type": "nominal", "title": None, "sort": list(TITLES.values())}},
            "spec": {"width": 300, "height": 260, "layer": [only, floor]}}


def draw(specs, out):
    """Each spec as NAME.svg."""
    with vega_svg.converter() as to_svg:
        for name, spec in specs.items():
            path = out / f"{name}.svg"
            path.write_text(to_svg(spec))
            print(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("records", type=Path, nargs="+", help="folders with records of `condense compare`")
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    options = parser.parse_args()
    cells, fell_back = sparse_only(read_cells(*options.records))
    for line in fell_back:
        print(line, file=sys.stderr)
    if not any(point["name"] in LABELS for point in points(cells, "greedy")):
        sys.exit(f"{', '.join(map(str, options.records))}: no policy is there on all of a model's prefixes")
    draw({"condense_kl_greedy": chart(cells, "greedy", "KL over bytes read, fed dense's own continuation"),
          "condense_kl_text": chart(cells, "text", "KL over bytes read, fed the text's continuation")}, options.out)


if __name__ == "__main__":
    main()
