#!/usr/bin/env python3
"""What `condense lab` writes: against docs/records.schema.json and docs/RECORDS.md; the same for the same spec, in any order of
cells, at 1 and 2 threads; as CSV."""

import csv
import json
import re

from lab_case import LabTest, N_CELLS, SPEC, host, untimed

DOCS = host.ROOT / "docs"
SPEED = """experiment = "matched-speed"
texts = ["words.txt"]
offsets = [0]
contexts = [300]
tokens = 9
policies = ["mean:blocks=4,window=32"]
speed_pairs = 2
"""
TYPES = {"string": str, "object": dict, "array": list, "boolean": bool, "null": type(None), "number": (int, float), "integer": int}
# The words of the schema that this check knows: a word that is not here fails the test, so that nothing passes unread.
WORDS = {"type", "const", "enum", "required", "properties", "additionalProperties", "items", "minimum", "maximum", "pattern"}


def wrong(value, schema, where="line"):
    """What of `value` is not as `schema` says: [text]."""
    unknown = set(schema) - WORDS
    if unknown:
        return [f"{where}: the test knows no {unknown}"]
    out = []
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(isinstance(value, TYPES[name]) and not (isinstance(value, bool) and name in ("number", "integer"))
                         for name in types):
        return [f"{where}: {value!r} is none of {types}"]
    if "const" in schema and value != schema["const"]:
        out.append(f"{where}: {value!r} is not {schema['const']!r}")
    if "enum" in schema and value not in schema["enum"]:
        out.append(f"{where}: {value!r} is none of {schema['enum']}")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value < schema.get("minimum", value) or value > schema.get("maximum", value):
            out.append(f"{where}: {value} is out of range")
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        out.append(f"{where}: {value!r} does not match {schema['pattern']}")
    if isinstance(value, dict):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        out += [f"{where}: no {key}" for key in schema.get("required", []) if key not in value]
        for key, inner in value.items():
            if key in properties:
                out += wrong(inner, properties[key], f"{where}.{key}")
            elif others is False:
                out.append(f"{where}: the schema has no {key}")
            elif isinstance(others, dict):
                out += wrong(inner, others, f"{where}.{key}")
    if isinstance(value, list) and "items" in schema:
        for i, inner in enumerate(value):
            out += wrong(inner, schema["items"], f"{where}[{i}]")
    return out


class Schema(LabTest):
    def setUp(self):
        super().setUp()
        self.schema = json.loads((DOCS / "records.schema.json").read_text())
        self.kinds = self.schema["$defs"]

    def test_the_check_itself_refuses(self):
        cell = {"schema": 1, "record": "cell", "experiment": "x", "cell": "a=1", "policy": "p", "name": "p", "budget": None,
                "state": "done", "reason": "", "least_budget": None, "seconds": 1.5, "group": "", "parameters": {"model": "m"}}
        kind = self.kinds["cell"]
        self.assertEqual(wrong(cell, kind), [])
        for key, value in (("schema", 2), ("state", "doing"), ("seconds", -1), ("budget", 2), ("parameters", {}), ("more", 1),
                           ("policy", None), ("seconds", True), ("parameters", {"model": "m", "x": []})):
            self.assertNotEqual(wrong({**cell, key: value}, kind), [], f"{key} = {value}")
        self.assertNotEqual(wrong({key: value for key, value in cell.items() if key != "group"}, kind), [])

    def test_every_line_is_as_the_schema_says(self):
        self.run_lab()
        lines = self.lines()
        seen = {line["record"] for line in lines}
        self.assertEqual(seen, {"run", "plan", "published", "prompt", "policy", "layer", "step", "rows", "cell"})
        for number, line in enumerate(lines, 1):
            self.assertIn(line["record"], self.kinds)
            self.assertEqual(wrong(line, self.kinds[line["record"]]), [], f"line {number}")
            if line["record"] not in ("run", "plan", "published"):
                self.assertIn("experiment", line)
                self.assertIn("cell", line)

    def timed(self, model):
        """Of a run of matched-speed, whose every line must be right: {way: its line}, {way: its cell's end}."""
        spec = self.write_spec("speed.toml", SPEED)
        self.run_lab(spec, model=model)
        lines = self.lines()
        for number, line in enumerate(lines, 1):
            self.assertEqual(wrong(line, self.kinds[line["record"]]), [], f"line {number}")
        timed = {line["policy"]: line for line in lines if line["record"] == "speed"}
        for way, line in timed.items():
            self.assertTrue(line["tokens_per_second"] > 0 and line["speed_ratio_median"] > 0, way)
            self.assertEqual(line["plugin_nodes"], 0, way)
            self.assertEqual(line["n_equal"], line["n_decisions"], way)
        self.assertIn("6 cells, 6 of them done before", self.run_lab(spec, model=model).stdout)
        return timed, {line["policy"]: line for line in lines if line["record"] == "cell"}

    def test_llama_cpp_is_timed_beside_policies(self):
        timed, ends = self.timed(host.tiny_model())
        for way in ("llama.cpp fa on", "llama.cpp fa off"):
            self.assertIn(way, timed)
            self.assertEqual(ends[way]["state"], "done")
        # llama.cpp multiplies several rows of the tiny model's weights otherwise than one.
        self.assertEqual(ends["exact lookup"]["state"], "done" if "exact lookup" in timed else "unmet")

    def test_exact_decoding_is_timed_beside_policies(self):
        timed, _ = self.timed(host.default_model())
        self.assertEqual(list(timed), ["llama.cpp fa on", "llama.cpp fa off", "exact lookup"])
        self.assertEqual(timed["exact lookup"]["n_decisions"], 9, "two blocks of the same tokens")

    def test_every_key_is_documented(self):
        page = (DOCS / "RECORDS.md").read_text()
        self.assertEqual([ref["$ref"].split("/")[-1] for ref in self.schema["oneOf"]], list(self.kinds))
        for name, kind in self.kinds.items():
            self.assertEqual(kind["properties"]["record"], {"const": name})
            self.assertFalse(kind["additionalProperties"])
            for key in kind["properties"]:
                self.assertRegex(page, rf"\b{key}\b", f"{name}.{key} in docs/RECORDS.md")

    def test_provenance(self):
        self.run_lab()
        lines = self.lines()
        self.assertEqual(lines[0]["record"], "run")
        run = lines[0]
        self.assertEqual((run["program"], run["threads"], run["rank"], run["ranks"]), ("condense lab", 2, 0, 1))
        self.assertTrue(run["compiler"] and run["instruction_set"] and run["cpu"] and run["llama_cpp_commit"])
        plan = next(line for line in lines if line["record"] == "plan")
        self.assertEqual(len(plan["cells"]), N_CELLS)
        self.assertEqual((self.folder / "out" / plan["spec_file"]).read_text(), SPEC)
        ends = [line for line in lines if line["record"] == "cell"]
        self.assertEqual([end["cell"] for end in ends], plan["cells"], "in the order of the plan")
        for end in ends:
            self.assertEqual(end["parameters"]["model"].split("@"), [run["model"], run["model_sha256"][:8]])
            self.assertEqual(end["cell"], " ".join(f"{key}={value}" for key, value in sorted(end["parameters"].items())))
        for prompt in (line for line in lines if line["record"] == "prompt"):
            self.assertIn(f"offset={prompt['offset']} ", prompt["cell"])
            self.assertEqual(prompt["text_source"], "words.txt")


class Equal(LabTest):
    def test_same_spec_twice_and_any_order_and_one_thread(self):
        self.run_lab(out="a")
        first = self.cells("a")
        self.assertEqual(len(first), N_CELLS)
        self.run_lab(out="b")
        self.assertEqual(self.cells("b"), first)
        self.assertEqual([untimed(line) for line in self.lines("b")], [untimed(line) for line in self.lines("a")])

        other = self.write_spec("other.toml", SPEC.replace("[0, 300]", "[300, 0]").replace("[300, 400]", "[400, 300]")
                                .replace('"mean:blocks=4,window=32", "quest:blocks=4,window=32"',
                                         '"quest:blocks=4,window=32", "mean:blocks=4,window=32"'))
        self.run_lab(other, out="c")
        self.assertEqual(self.cells("c"), first, "the order of cells is no matter")

        self.run_lab(out="d", threads=1)
        self.assertEqual(self.cells("d"), first, "nor are threads, on this model")

    def test_sparse_cells_are_sparse(self):
        self.run_lab()
        ran = {}
        for line in self.lines():
            if line["record"] == "policy":
                ran.setdefault(line["name"], []).append(line)
        self.assertEqual(set(ran), {"dense", "control", "mean", "quest"})
        for name in ("mean", "quest"):
            self.assertTrue(all(line["sparse_steps"] > 0 and line["kv_read_share"] < 1 for line in ran[name]), name)
        self.assertTrue(all(line["sparse_steps"] == 0 and line["survived"] for line in ran["dense"]))


class DefaultModel(LabTest):
    def test_one_and_two_threads_decide_alike(self):
        spec = self.write_spec("two.toml", SPEC.replace("[0, 300]", "[0]").replace("[300, 400]", "[300]"))
        tokens = []
        for threads in (1, 2):
            self.run_lab(spec, out=f"t{threads}", model=host.default_model(), threads=threads)
            tokens.append({(line["policy"], line["teacher"]): line["autonomous_tokens"] for line in self.lines(f"t{threads}")
                           if line["record"] == "policy"})
        self.assertEqual(len(tokens[0]), 8)
        self.assertEqual(tokens[0], tokens[1])


class Export(LabTest):
    def test_csv_holds_what_the_records_hold(self):
        self.run_lab()
        done = self.call(self.command("export", self.folder / "out", "--csv"))
        lines = self.lines()
        kinds = sorted({line["record"] for line in lines})
        self.assertEqual(done.stdout.split(), [str(self.folder / "out/csv" / f"{kind}.csv") for kind in kinds])
        for kind in kinds:
            wanted = [line for line in lines if line["record"] == kind]
            with open(self.folder / "out/csv" / f"{kind}.csv", newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            self.assertEqual(len(rows), len(wanted), kind)
            for row, line in zip(rows, wanted):
                if "cell" in line:
                    self.assertEqual(row["parameters.tokens"], "17")
                for key, value in line.items():
                    if isinstance(value, str):
                        self.assertEqual(row[key], value)
                    elif isinstance(value, float):
                        self.assertEqual(float(row[key]), value)
                    elif value is None:
                        self.assertEqual(row[key], "")
                    elif isinstance(value, list):
                        self.assertEqual(json.loads(row[key]), value)

    def test_what_is_no_folder_of_the_lab(self):
        done = self.call(self.command("export", self.folder, "--csv"), expect=1)
        self.assertIn("holds no records of the lab", done.stderr)


if __name__ == "__main__":
    host.main()
