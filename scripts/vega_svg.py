"""Vega-Lite specs drawn to SVG by the pinned vl-convert (the one that bundles the report's JavaScript; scripts/fetch.py vega),
out of its wheel. The same spec gives the same bytes."""
import contextlib
import platform
import sys
import tempfile
import zipfile
from pathlib import Path

import fetch

BUILD = Path(__file__).resolve().parent.parent / "build"


@contextlib.contextmanager
def converter():
    """A function from a spec to SVG text. Ends the program, with the reason, where there is no vl-convert."""
    machine = platform.machine()
    if machine not in fetch.VEGA:
        sys.exit(f"no vl-convert wheel is pinned for {machine}")
    try:
        wheel = fetch.fetch(fetch.VEGA[machine], BUILD)
    except fetch.Failure as failure:
        sys.exit(str(failure))
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        sys.path.insert(0, folder)
        try:
            import vl_convert
            yield lambda spec: vl_convert.vegalite_to_svg(spec) + "\n"
        finally:
            sys.path.remove(folder)
