"""Stands in for a package's build system while pip downloads its sdist.

pip asks the build backend of every sdist for metadata even when it only downloads. The real one would have to be
installed, and could run the package's code, for an answer that nothing here reads. This one reads PKG-INFO (the
metadata that every sdist carries) and builds nothing.
"""

import pathlib


def get_requires_for_build_wheel(config_settings=None):
    return []


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    text = pathlib.Path("PKG-INFO").read_text(encoding="utf-8")
    fields = dict(line.split(": ", 1) for line in text.split("\n\n")[0].splitlines() if ": " in line)
    name = f"{fields['Name'].replace('-', '_')}-{fields['Version']}.dist-info"
    folder = pathlib.Path(metadata_directory, name)
    folder.mkdir()
    (folder / "METADATA").write_text(text, encoding="utf-8")
    (folder / "WHEEL").write_text("Wheel-Version: 1.0\nGenerator: stand_in\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    return name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    raise RuntimeError("this backend answers for metadata only")
