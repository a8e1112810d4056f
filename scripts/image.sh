#!/usr/bin/env bash
# An OCI image of a node from nothing but Debian and hashed requirements; needs root and debootstrap.
#
#   scripts/image.sh [OUT]   dist/image by default; dist/*.whl must be there (make wheel)
#
#   SUITE              Debian's, trixie by default
#   MIRROR             where its packages come from; by default the mirror that apt uses here
#   SOURCE_DATE_EPOCH  the time of all files; by default that of the last commit
#
# debootstrap checks the signatures of Debian's archive, pip the hashes. Whatever names this machine, the mirror or the hour
# is left out of the root, so that the same packages give the same hash. It is recorded in OUT.sha256.
set -euo pipefail
cd "$(dirname "$0")/.."
OUT=${1:-dist/image}
SUITE=${SUITE:-trixie}
declare -A PYTHONS=([bookworm]=3.11 [trixie]=3.13)
PYTHON=${PYTHONS[$SUITE]:?"no Python is known for $SUITE; bookworm or trixie"}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
[ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null || { echo "root with debootstrap can make the image"; exit 1; }
WHEELS=(dist/dynadp-*.whl)
[ ${#WHEELS[@]} = 1 ] && [ -e "${WHEELS[0]}" ] || { echo "exactly one dist/dynadp-*.whl must be there: make wheel"; exit 1; }
MIRROR=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | head -n 1)}

WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
ROOT=$WORK/root
debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$SUITE" "$ROOT" "${MIRROR%/}" >"$WORK/log" 2>&1 ||
  { tail -n 20 "$WORK/log"; exit 1; }

# The index is asked from here, so that no setting of it gets into the root; there pip checks the hashes once more.
python3 scripts/wheels.py "$PYTHON" "$ROOT/wheels"
cp deploy/requirements.txt "${WHEELS[0]}" "$ROOT/wheels"
chroot "$ROOT" env -i PATH=/usr/bin:/usr/sbin:/bin:/sbin HOME=/root LANG=C.UTF-8 bash -euc '
  python3 -m venv /opt/dynadp
  pip() { /opt/dynadp/bin/python -m pip --quiet --no-cache-dir --disable-pip-version-check "$@"; }
  pip install --no-index --find-links /wheels --require-hashes --no-compile -r /wheels/requirements.txt
  pip install --no-index --no-deps --no-compile /wheels/dynadp-*.whl
  pip uninstall --yes pip
  useradd --system --user-group --home-dir /srv/dynadp --shell /usr/sbin/nologin dynadp
  install -d -o dynadp -g dynadp /srv/dynadp
  rm -rf /wheels
  find / -xdev -name __pycache__ -prune -exec rm -rf {} +
  python3 -m compileall -q --invalidation-mode unchecked-hash /usr/lib/python3* /opt/dynadp/lib >/dev/null || true
  dpkg-query --show > /packages'
mv "$ROOT/packages" "$WORK/packages"

# What differs from machine to machine, and from day to day.
rm -rf "$ROOT"/var/log/* "$ROOT"/var/cache/* "$ROOT"/var/lib/apt/lists/* "$ROOT"/tmp/* "$ROOT"/root/.cache "$ROOT"/debootstrap \
  "$ROOT"/etc/*- "$ROOT"/var/lib/dpkg/*-old "$ROOT"/etc/machine-id "$ROOT"/var/lib/dbus/machine-id "$ROOT"/run/*
: >"$ROOT/etc/resolv.conf"
echo localhost >"$ROOT/etc/hostname"
echo "deb http://deb.debian.org/debian $SUITE main" >"$ROOT/etc/apt/sources.list"
sed -i -E "s/^([^:]*:[^:]*):[0-9]+:/\1:$((SOURCE_DATE_EPOCH / 86400)):/" "$ROOT/etc/shadow"

mkdir -p "$(dirname "$OUT")"
python3 scripts/oci.py "$ROOT" "$OUT"
mv "$WORK/packages" "$OUT.packages"
if command -v cyclonedx-py >/dev/null; then # the Python of the root cannot run it: its packages are listed from outside
  printf '#!/bin/sh\nPYTHONPATH=%q exec python3 -S "$@"\n' "$ROOT/opt/dynadp/lib/python$PYTHON/site-packages" >"$WORK/python"
  chmod +x "$WORK/python"
  PYTHONPATH= cyclonedx-py environment --output-reproducible --output-file "$OUT.cdx.json" "$WORK/python"
fi
cat "$OUT.sha256"
