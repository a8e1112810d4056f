#!/usr/bin/env bash
# The first tier with every Python from 3.11 that can be had here, and with the lowest versions that pyproject.toml admits.
#
#   scripts/matrix.sh [VERSION...]   such as 3.13, or lowest; all by default
#
# An interpreter on the path is taken as it is. For others, root with debootstrap makes a small Debian (for 3.12: Ubuntu, where
# its keyring is here and the mirror has it too) in .matrix/SUITE from the mirror that apt uses, and runs the tests in it on a
# copy of the checkout, with this machine's settings of pip. It ends by saying what passed, what failed and what was not tried.
set -uo pipefail
cd "$(dirname "$0")/.."
HERE=$PWD
MATRIX=$HERE/.matrix
VERSIONS=("${@:-3.11 3.12 3.13 3.14 lowest}")
declare -A SUITES=([3.11]=bookworm [3.12]=noble [3.13]=trixie [3.14]=forky)
PACKAGES=python3,python3-venv,ca-certificates,curl,iproute2
UBUNTU_KEYS=/usr/share/keyrings/ubuntu-archive-keyring.gpg
passed=() failed=() left=()

# The mirror that apt uses here: settings of this machine are read, never kept.
mirror() {
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' 2>/dev/null | head -n 1
}

# why_not SUITE: what is missing to make it; nothing where nothing is.
why_not() {
  if [ -z "$1" ]; then
    echo "no suite is known to have it"
  elif [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null || [ -z "$(mirror)" ]; then
    echo "root on a Debian with debootstrap could get it"
  elif [ "$1" = noble ] && [ ! -e $UBUNTU_KEYS ]; then
    echo "no suite of Debian has it; with $UBUNTU_KEYS, Ubuntu's $1 could be made"
  fi
}

# make_root SUITE: the folder of a system, made once.
make_root() {
  local root=$MATRIX/$1 from options=() script=/usr/share/debootstrap/scripts/$1
  [ -e "$root/.made" ] && return
  [ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid # a suite that is younger than this debootstrap
  from=$(mirror)
  from=${from%/}
  if [ "$1" = noble ]; then
    from=${from%/*}/ubuntu script=/usr/share/debootstrap/scripts/gutsy
    options=(--components=main,universe --keyring=$UBUNTU_KEYS --force-check-gpg)
  fi
  rm -rf "$root" && mkdir -p "$root" &&
    debootstrap --variant=minbase --include=$PACKAGES "${options[@]}" "$1" "$root" "$from" "$script" >"$root.log" 2>&1 &&
    touch "$root/.made"
}

# Folders and files outside the checkout that pip and the tests may read there too.
shared_paths() {
  local path
  for path in /etc/resolv.conf /etc/hosts /etc/ssl/certs /etc/pip.conf "$HOME/.config/pip" "$HOME/.pip" "${DYNADP_DATA:-}"; do
    [ -n "$path" ] && [ -e "$path" ] && echo "$path"
  done
  python3 -m pip config list 2>/dev/null | grep -oE "(file://|[ '])/[^ ']+" | sed -E "s#^(file://|[ '])##; s#/simple/?\$##" |
    while read -r path; do [ -d "$path" ] && echo "$path"; done
}

# in_root SUITE COMMAND...: runs as root of that Debian, in its copy of the checkout; mounts end with the process.
in_root() {
  local root=$MATRIX/$1 name kept=()
  shift
  for name in $(compgen -e | grep -E '^(PIP_|SSL_CERT_|CI$|DYNADP_DATA$|REQUESTS_CA_BUNDLE$)|_(proxy|PROXY)$'); do
    kept+=("$name=${!name}")
  done
  SHARED=$(shared_paths | sort -u) unshare --mount bash -euc '
    root=$1; shift
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount --rbind /sys "$root/sys"
    for path in $SHARED; do
      if [ -d "$path" ]; then mkdir -p "$root$path"; else mkdir -p "$root${path%/*}"; touch "$root$path"; fi
      mount --bind "$(readlink -f "$path")" "$root$path"
    done
    exec chroot "$root" env -i HOME="$HOME" LANG=C.UTF-8 PATH=/venv/bin:/usr/bin:/usr/sbin:/bin:/sbin "$@"
  ' bash "$root" "${kept[@]}" bash -euc "cd /checkout; $*"
}

# test_in_root VERSION SUITE
test_in_root() {
  local root=$MATRIX/$2
  make_root "$2" || { echo "debootstrap failed: see $MATRIX/$2.log"; return 1; }
  [ -x "$root/usr/bin/python$1" ] || { echo "$2 has no python$1 (any more): mend SUITES, or remove $root to make it anew"; return 1; }
  rm -rf "$root/checkout" && mkdir -p "$root/checkout" &&
    tar -c --exclude=./.git --exclude='./.venv*' --exclude=./.matrix --exclude='*_cache' --exclude=__pycache__ . |
    tar -x -C "$root/checkout" &&
    in_root "$2" "[ -x /venv/bin/python ] || python$1 -m venv /venv
      python -m pip install --quiet --editable '.[dev]'
      OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 pytest -n 2 -m 'not slow' -p no:cacheprovider ${PYTEST_MORE:-}"
}

for version in ${VERSIONS[*]}; do
  suite=${SUITES[$version]:-}
  if [ "$version" = lowest ]; then
    make VENV=.venv-lowest .venv-lowest/.lowest-tested && passed+=("$version") || failed+=("$version")
  elif "python$version" -c '' 2>/dev/null; then
    make "VENV=.venv-python$version" "PYTHON=python$version" ".venv-python$version/.tested" &&
      passed+=("$version") || failed+=("$version")
  elif [ -n "$(why_not "$suite")" ]; then
    left+=("$version: python$version is not on the path; $(why_not "$suite")")
  else
    test_in_root "$version" "$suite" && passed+=("$version ($suite)") || failed+=("$version ($suite)")
  fi
done

echo "Passed: $(IFS=,; echo "${passed[*]:-none}")"
[ ${#left[@]} -eq 0 ] || printf 'Not tried: %s\n' "${left[@]}"
[ ${#failed[@]} -eq 0 ] || { echo "FAILED: $(IFS=,; echo "${failed[*]}")"; exit 1; }
