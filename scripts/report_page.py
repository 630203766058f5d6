"""A page of `condense report` taken apart: headings, texts, tables and figures in their order, charts' specs, colours."""
import html.parser
import json
import re
from dataclasses import dataclass, field

VOID = {"meta", "link", "br", "wbr", "hr", "img", "input"}
SKIPPED = {"header", "nav", "script", "style", "noscript", "summary"}
SKIPPED_CLASSES = {"words", "sides", "aloud", "legend"}


class Element:
    def __init__(self, tag, attributes):
        self.tag, self.attributes, self.children = tag, dict(attributes), []

    def classes(self):
        return set((self.attributes.get("class") or "").split())

    def find_all(self, tag):
        for child in self.children:
            if isinstance(child, Element):
                if child.tag == tag:
                    yield child
                yield from child.find_all(tag)

    def raw(self):
        return "".join(child if isinstance(child, str) else child.raw() for child in self.children)

    def text(self):
        """As Markdown, on one line."""
        return re.sub(r"\s+", " ", self.inline()).strip()

    def inline(self):
        """As Markdown, line ends kept."""
        out = "".join(escaped(child) if isinstance(child, str) else child.inline() for child in self.children)
        if self.classes() & {"aloud"} or self.tag == "summary":
            return ""
        if self.tag == "code":
            return f"`{self.raw()}`"
        if self.tag in ("b", "strong"):
            return f"**{out}**"
        return f" {out}" if self.tag == "span" and "interval" in self.classes() else out


class Tree(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.root = Element("", [])
        self.open = [self.root]
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        element = Element(tag, attrs)
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        at = next((i for i in range(len(self.open) - 1, 0, -1) if self.open[i].tag == tag), None)
        if at is not None:
            del self.open[at:]

    def handle_data(self, data):
        self.open[-1].children.append(data)


def escaped(text):
    """What Markdown would take for its own signs."""
    return re.sub(r"([\\`*_<\[])", r"\\\1", text)


@dataclass
class Heading:
    level: int
    text: str
    kind = "heading"


@dataclass
class Paragraph:
    text: str
    kind = "text"


@dataclass
class Table:
    caption: str
    head: list
    words: list  # by column: of words, not of figures
    rows: list
    kind = "table"


@dataclass
class Figure:
    id: str
    title: str
    caption: str
    charts: list  # ids of its specs
    panel_titles: dict  # by id
    tables: list  # its data
    kind = "figure"


@dataclass
class Page:
    title: str
    colours: dict  # "--ink" → "#1b1e23", of the light scheme
    specs: list
    parts: list = field(default_factory=list)


def table_of(element, plain):
    """Cells that span rows or columns stand in the first of them, the others are empty. plain: no Markdown in the cells."""
    captions = [caption.text() for caption in element.find_all("caption")]
    grid, words = [], {}
    spans = {}  # (row, column) taken by a cell above
    for at, row in enumerate(element.find_all("tr")):
        cells, column = [], 0
        for cell in (child for child in row.children if isinstance(child, Element) and child.tag in ("td", "th")):
            while (at, column) in spans:
                cells.append("")
                column += 1
            text = re.sub(r"\s+", " ", cell.raw()).strip() if plain else cell.text()
            width, height = (int(cell.attributes.get(name) or 1) for name in ("colspan", "rowspan"))
            cells += [text, *[""] * (width - 1)]
            spans.update({(at + below, column + beside): True for below in range(1, height) for beside in range(width)})
            if at > 0:
                words[column] = words.get(column, False) or cell.tag == "th" or "word" in cell.classes()
            column += width
        while (at, column) in spans:
            cells.append("")
            column += 1
        grid.append(cells)
    head = grid[0]
    return Table(captions[0] if captions else "", head, [words.get(i, False) for i in range(len(head))], grid[1:])


def figure_of(element):
    charts = [div.attributes["id"] for div in element.find_all("div") if "chart" in div.classes()]
    panels = [div for div in element.find_all("div") if "panel" in div.classes()]
    titles = {}
    for panel in panels:
        (head,), (chart,) = list(panel.find_all("h4")), [div for div in panel.find_all("div") if "chart" in div.classes()]
        note = "".join(span.raw() for span in head.find_all("span"))
        titles[chart.attributes["id"]] = " ".join(head.raw().replace(note, f" ({note})" if note else "").split())
    caption = next(element.find_all("figcaption"), None)
    return Figure(charts[0].rsplit("-", 1)[0] if panels else charts[0], next(element.find_all("h3")).raw(),
                  caption.text() if caption else "", charts, titles,
                  [table_of(table, plain=True) for table in element.find_all("table")])


def parts_of(element):
    for child in element.children:
        if not isinstance(child, Element) or child.tag in SKIPPED or child.classes() & SKIPPED_CLASSES:
            continue
        if child.tag in ("h2", "h3", "h4"):
            yield Heading(int(child.tag[1]), child.text())
        elif child.tag == "p":
            lines = child.inline().strip().split("\n") if "below" in child.classes() else [child.text()]
            yield Paragraph("  \n".join(line.strip() for line in lines))
        elif child.tag in ("ul", "ol"):
            yield Paragraph("\n".join(f"- {item.text()}" for item in child.find_all("li")))
        elif child.tag == "dl":
            yield Paragraph("\n".join(f"- {dt.text()}: {dd.text()}" for dt, dd in
                                      zip(child.find_all("dt"), child.find_all("dd"))))
        elif child.tag == "table":
            yield table_of(child, plain=False)
        elif child.tag == "figure":
            yield figure_of(child)
        else:
            yield from parts_of(child)


def read_page(text):
    """Errors: ValueError, of a text that is no page of `condense report`."""
    root = Tree(text).root
    specs = next((script for script in root.find_all("script") if script.attributes.get("id") == "specs"), None)
    style = next(root.find_all("style"), None)
    main = next(root.find_all("main"), None)
    if not (specs and style and main):
        raise ValueError("no page of `condense report`")
    light = style.raw().split("}", 1)[0]
    return Page(title=next(root.find_all("h1")).text(), colours=dict(re.findall(r"(--[a-z0-9-]+):\s*([^;]+);", light)),
                specs=json.loads(specs.raw()), parts=[part for part in parts_of(main) if part.kind != "text" or part.text])
