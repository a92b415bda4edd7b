#!/bin/sh
# All tests: those with servers of their own in two processes, the whole product afterwards, one at a time.
# With HEADRACE_STRICT=1 a test that is left out is a failure. Arguments go to pytest.
set -u
cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH
OUTCOME=0

run() {
  # The bound only ends what hangs: three times that of pyproject.toml, as others may have this machine's cores.
  BEGAN=$(date +%s)
  pytest --timeout 180 "$@"
  code=$?
  printf '  took %s s\n' "$(($(date +%s) - BEGAN))"
  # 5: nothing was collected, as in a folder that waits for its first test.
  [ $code -eq 0 ] || [ $code -eq 5 ] || OUTCOME=1
}

FOLDERS=""
for folder in tests/unit tests/integration tests/contract; do
  [ -d "$folder" ] && FOLDERS="$FOLDERS $folder"
done
# By file: the tests of a file share a database. Two: each process starts a PostgreSQL and a Redis.
# shellcheck disable=SC2086  # the list is meant to be split
run -q -n 2 --dist loadfile $FOLDERS "$@"
[ -d tests/e2e ] && run -q tests/e2e "$@"
exit $OUTCOME
