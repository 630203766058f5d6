#!/usr/bin/env python3
"""The figures of a report as files, to be committed beside a text: each chart as a standalone SVG (ID.svg), its data as CSV
(ID.csv), and figures.md with the tables as Markdown, the charts in their places and what was found. The same page gives the
same bytes.

A chart of the page shows what is chosen below it, a setting or a policy; here the first of each, which its subtitle
names. --every draws each choice there is, as ID-CHOICE.svg.

usage: condense report lab -o lab.html; scripts/report_figures.py lab.html docs/figures [--every]
"""
import argparse
import copy
import csv
import itertools
import json
import re
import sys
from pathlib import Path

import vega_svg
from report_page import read_page

WIDTH, PANEL_WIDTH, PANEL_COLUMNS = 560, 190, 3
KEYS_A_LINE = 3
MOST_KEYS = 24  # more are named in the data alone


def walk(node):
    """Every object in a spec."""
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from walk(value)
    elif isinstance(node, list):
        for value in node:
            yield from walk(value)


def with_colours(spec, colours):
    """Colours as they are, not as variables of the page's style."""
    text = re.sub(r"var\((--[a-z0-9-]+)\)", lambda match: colours[match[1]], json.dumps(spec))
    return json.loads(text)


def choices(spec):
    """[(name, label, options)] of what the page lets its reader choose."""
    return [(param["name"], param["bind"].get("name", param["name"]), param["bind"]["options"])
            for param in spec.get("params", []) if "options" in param.get("bind", {})]


def fields_of(spec, channel):
    """What a channel shows in any layer."""
    return {node[channel].get("field") for node in walk(spec) if isinstance(node.get(channel), dict)}


def marked_rows(spec):
    """The data's rows that are of a policy with a letter."""
    return [row for rows in spec["datasets"].values() for row in rows if row.get("key")]


def keys_of(spec):
    """The letters in the chart with what they stand for, as the legend of the page has them."""
    if "key" not in fields_of(spec, "text"):
        return []
    keys = {}
    for row in marked_rows(spec):
        words = row["label"].split()  # "A  mean:blocks=2"; of a budget "mean 5 %"
        keys.setdefault(row["key"], " ".join(words if words[0] == row["key"] else [row["key"], row.get("name", words[0])]))
    return list(keys.values()) if len(keys) <= MOST_KEYS else []


def name_colours(spec):
    """A legend of the colours, where neither letters nor an axis say whose they are."""
    if "key" in fields_of(spec, "text") or "label" in fields_of(spec, "x") | fields_of(spec, "y"):
        return
    colours = {row["label"]: f"var(--c{row['colour'] + 1})" for row in marked_rows(spec) if "colour" in row}
    if not 0 < len(colours) <= MOST_KEYS:
        return
    for node in walk(spec):
        if node.get("field") == "colour":
            node.update(field="label", scale={"domain": list(colours), "range": list(colours.values())},
                        legend={"title": None, "columns": KEYS_A_LINE})


def standalone(spec, title, chosen, width=WIDTH):
    """The spec as a chart of its own: of a width, with a title, its letters explained, nothing left to choose."""
    spec = copy.deepcopy(spec)
    subtitle = ["; ".join(f"{label}: {value}" for _, label, value in chosen)] if chosen else []
    keys = keys_of(spec)
    name_colours(spec)
    subtitle += [" · ".join(keys[at:at + KEYS_A_LINE]) for at in range(0, len(keys), KEYS_A_LINE)]
    spec["width"] = width
    spec.pop("autosize", None)
    spec["title"] = {"text": title, "subtitle": subtitle, "anchor": "start", "frame": "group", "offset": 14}
    values = {name: value for name, _, value in chosen}
    for param in spec.get("params", []):
        if param["name"] in values:
            param.pop("bind")
            param["value"] = values[param["name"]]
    return spec


def side_by_side(panels, title):
    """One spec of several charts; each has its data inlined, since they bear the same names."""
    charts = []
    for panel_title, spec in panels:
        chart = standalone(spec, panel_title, [], PANEL_WIDTH)
        datasets = chart.pop("datasets", {})
        for node in walk(chart):
            if isinstance(node.get("data"), dict) and "name" in node["data"]:
                node["data"] = {"values": datasets[node["data"]["name"]]}
        chart["title"] = {"text": panel_title, "anchor": "start", "fontSize": 11}
        charts.append(chart)
    return {"title": {"text": title, "anchor": "start", "offset": 14}, "columns": PANEL_COLUMNS, "concat": charts,
            "resolve": {"scale": {"color": "independent", "opacity": "independent"}}}


def config(colours):
    """As assets/report.js, on white paper."""
    ink, soft, line = (colours[f"--{name}"] for name in ("ink", "soft", "line"))
    return {"background": "white", "view": {"stroke": None}, "text": {"color": ink, "fontSize": 12}, "rule": {"color": soft},
            "line": {"color": soft}, "range": {"category": [colours[f"--c{i}"] for i in range(1, 9)]},
            "title": {"color": ink, "subtitleColor": soft, "subtitlePadding": 6},
            "axis": {"labelColor": ink, "titleColor": soft, "gridColor": line, "domainColor": soft, "tickColor": soft,
                     "titleFontWeight": "normal", "titlePadding": 8, "labelOverlap": "greedy", "labelSeparation": 6},
            "axisBand": {"labelLimit": 260},
            "legend": {"labelColor": ink, "titleColor": soft, "titleFontWeight": "normal", "symbolBaseFillColor": ink,
                       "symbolBaseStrokeColor": ink, "orient": "bottom", "columns": 3, "labelLimit": 230}}


def drawings(figure, specs, every):
    """(name, spec) of each file that a figure of the page makes."""
    ids = figure.charts
    if len(ids) > 1 or ids[0] != figure.id:
        yield figure.id, side_by_side([(figure.panel_titles.get(name, ""), specs[name]) for name in ids], figure.title)
        return
    spec = specs[figure.id]
    offered = choices(spec)
    for values in itertools.product(*(options for _, _, options in offered)):
        chosen = [(name, label, value) for (name, label, _), value in zip(offered, values)]
        words = [re.sub(r"[^\w.]+", "-", str(value)).strip("-") for value in values]
        yield "-".join([figure.id, *words]) if every else figure.id, standalone(spec, figure.title, chosen)
        if not every:
            return


def write_csv(path, tables):
    """The tables of a figure one below the other, a blank line between."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        for i, table in enumerate(tables):
            if i > 0:
                out.writerow([])
            out.writerows([table.head, *table.rows])


def markdown(table):
    def line(cells):
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [*([table.caption, ""] if table.caption else []), line(table.head),
            "|" + "|".join(" --- |" if word else " ---: |" for word in table.words).replace("||", "|"), *map(line, table.rows)]


def write_figures(page, folder, every, to_svg):
    """Gives the paths written."""
    folder.mkdir(parents=True, exist_ok=True)
    specs = {chart["id"]: chart["spec"] for chart in page.specs}
    text = [f"# {page.title}", ""]
    written = []
    for part in page.parts:
        if part.kind == "heading":
            text += ["#" * part.level + " " + part.text, ""]
        elif part.kind == "text":
            text += [part.text, ""]
        elif part.kind == "table":
            text += [*markdown(part), ""]
        else:
            write_csv(folder / f"{part.id}.csv", part.tables)
            written.append(folder / f"{part.id}.csv")
            for name, spec in drawings(part, specs, every):
                spec["config"] = config(page.colours)
                path = folder / f"{name}.svg"
                path.write_text(to_svg(with_colours(spec, page.colours)), encoding="utf-8")
                written.append(path)
                text += [f"![{part.title}]({path.name})", ""]
            text += [f"{part.caption} [Data]({part.id}.csv).", ""]
    (folder / "figures.md").write_text("\n".join(text), encoding="utf-8")
    return [*written, folder / "figures.md"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("page", type=Path, help="what `condense report` or `condense compare --report` wrote")
    parser.add_argument("out", type=Path, help="folder of the files; what is there of the same names is written over")
    parser.add_argument("--every", action="store_true", help="an SVG for every choice that a chart of the page offers")
    options = parser.parse_args()
    try:
        page = read_page(options.page.read_text(encoding="utf-8"))
    except (OSError, ValueError) as reason:
        sys.exit(f"{options.page}: {reason}")
    with vega_svg.converter() as to_svg:
        for path in write_figures(page, options.out, options.every, to_svg):
            print(path)


if __name__ == "__main__":
    main()
