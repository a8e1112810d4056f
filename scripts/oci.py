"""A root folder as an OCI image: ``python3 scripts/oci.py ROOT OUT``.

The layer is a tar in the order of names, with numbers for owners and no time later than
SOURCE_DATE_EPOCH, so that the same files give the same bytes. OUT is a folder in the layout of the
OCI image specification; OUT.sha256 has the hash of its manifest and that of the layer before it is
packed.
"""

import gzip
import hashlib
import json
import os
import platform
import shutil
import sys
import tarfile
from datetime import UTC, datetime
from pathlib import Path

EPOCH = int(os.environ["SOURCE_DATE_EPOCH"])
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def layer(root: Path, out: Path) -> str:
    """Write the tar of a root; return its SHA-256."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uname = entry.gname = ""
        entry.mtime = min(int(entry.mtime), EPOCH)
        return entry

    paths = sorted(root.rglob("*"), key=lambda path: path.relative_to(root).parts)
    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in paths:
            if not path.is_socket():
                tar.add(path, str(path.relative_to(root)), recursive=False, filter=plain)
    return digest(out)


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(root: Path, out: Path) -> None:
    """Write the image."""
    shutil.rmtree(out, ignore_errors=True)
    blobs = out / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(kind: str, content: object) -> dict[str, object]:
        data = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        name = hashlib.sha256(data).hexdigest()
        (blobs / name).write_bytes(data)
        return described(kind, blobs / name)

    def described(kind: str, path: Path) -> dict[str, object]:
        kind = f"application/vnd.oci.image.{kind}"
        return {"mediaType": kind, "digest": f"sha256:{path.name}", "size": path.stat().st_size}

    plain, packed = out / "layer.tar", out / "layer.tar.gz"
    unpacked = layer(root, plain)
    with (
        plain.open("rb") as source,
        packed.open("wb") as target,
        gzip.GzipFile("", "wb", 6, target, mtime=0) as file,
    ):
        shutil.copyfileobj(source, file, 1 << 20)
    plain.unlink()
    packed = packed.rename(blobs / digest(packed))

    made = f"{datetime.fromtimestamp(EPOCH, UTC):%Y-%m-%dT%H:%M:%SZ}"
    config = blob(
        "config.v1+json",
        {
            "architecture": MACHINES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "created": made,
            "config": {
                "User": "dynadp",
                "Env": [
                    "PATH=/opt/dynadp/bin:/usr/local/bin:/usr/bin:/bin",
                    "LANG=C.UTF-8",
                    "OPENBLAS_NUM_THREADS=1",
                ],
                "Entrypoint": ["/opt/dynadp/bin/dynadp"],
                "Cmd": ["--help"],
                "Volumes": {"/srv/dynadp": {}},
                "StopSignal": "SIGTERM",
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{unpacked}"]},
            "history": [{"created": made, "created_by": "scripts/image.sh"}],
        },
    )
    layers = [described("layer.v1.tar+gzip", packed)]
    manifest = blob(
        "manifest.v1+json",
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config,
            "layers": layers,
        },
    )
    named = {**manifest, "annotations": {"org.opencontainers.image.ref.name": "latest"}}
    index = {"schemaVersion": 2, "manifests": [named]}
    (out / "index.json").write_text(json.dumps(index, sort_keys=True))
    (out / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    name = str(manifest["digest"]).removeprefix("sha256:")
    lines = f"{name}  manifest\n{unpacked}  root.tar\n"
    out.with_name(f"{out.name}.sha256").write_text(lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
