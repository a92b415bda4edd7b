#!/bin/sh
# Regenerates protos/gen from protos/headrace; `make check` fails when the result differs from what is committed.
set -eu
cd "$(dirname "$0")/.."
PY=${PYTHON:-python3}
BIN=$(dirname "$(command -v "$PY")")
rm -rf protos/gen/headrace
"$PY" -m grpc_tools.protoc -I protos \
  --plugin=protoc-gen-mypy="$BIN/protoc-gen-mypy" --plugin=protoc-gen-mypy_grpc="$BIN/protoc-gen-mypy_grpc" \
  --python_out=protos/gen --grpc_python_out=protos/gen --mypy_out=quiet:protos/gen --mypy_grpc_out=quiet,async_only:protos/gen \
  $(find protos/headrace -name '*.proto' | sort)
