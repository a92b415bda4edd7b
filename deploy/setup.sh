#!/bin/sh
# A fresh machine: virtual environment, locked dependencies, our own packages editable, both servers found.
# Needs Python 3.11 or newer and a package index; no root, no compiler. `make` calls it only when something changed.
set -eu
cd "$(dirname "$0")/.."
mkdir -p .run
LOG=$PWD/.run/setup.log
BEGAN=$(date +%s)

# Two makes at once wait for each other; flock(1) is part of every Linux base system, and elsewhere we go without.
if [ "${HEADRACE_SETUP_LOCKED:-}" != 1 ] && command -v flock >/dev/null 2>&1; then
  HEADRACE_SETUP_LOCKED=1 exec flock .run/setup.lock sh deploy/setup.sh
fi

fail() {
  printf '\nsetup failed: %s\nthe last lines of %s:\n' "$1" "$LOG" >&2
  tail -n 15 "$LOG" >&2
  exit 1
}

step() {
  printf '  %-52s' "$1"
  shift
  STEP_BEGAN=$(date +%s)
  "$@" >>"$LOG" 2>&1 || { echo failed; fail "$*"; }
  printf '%3s s\n' "$(($(date +%s) - STEP_BEGAN))"
}

find_python() {
  for candidate in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11; do
    if [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 &&
      "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "setup failed: no Python 3.11 or newer found; install one, or name it: make setup PYTHON=/path/to/python3" >&2
  exit 1
}

make_venv() {
  # Debian splits ensurepip off into python3-venv; where it is missing, an existing pip does as well.
  "$1" -m venv .venv && return
  echo "venv with pip is not available; trying without" 
  rm -rf .venv
  "$1" -m venv --without-pip .venv && "$1" -m pip --python .venv/bin/python install pip && return
  rm -rf .venv
  echo "install the venv module of your Python (Debian: apt install python3-venv)"
  return 1
}

: >"$LOG"
if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  FOUND=$(find_python)
  rm -rf .venv
  step "virtual environment ($FOUND)" make_venv "$FOUND"
fi
PIP=".venv/bin/python -m pip --disable-pip-version-check --no-input"
step "dependencies, by hash ($(grep -c '^[a-z0-9].*==' requirements.lock) packages)" \
  $PIP install --no-deps --require-hashes -r requirements.lock
EDITABLE=""
for project in protos libs/* deploy loadtest services/*; do
  [ -f "$project/pyproject.toml" ] && EDITABLE="$EDITABLE -e ./$project"
done
# shellcheck disable=SC2086  # the list is meant to be split
step "our own packages, editable" $PIP install --no-deps --no-build-isolation $EDITABLE
.venv/bin/python -m headrace_deploy.commands servers || exit 1
touch .venv/.headrace-setup
printf '  ready after %s s\n' "$(($(date +%s) - BEGAN))"
