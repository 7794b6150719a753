#!/usr/bin/env bash
# Plugin documentation and changelog: valid, complete, and renderable.
set -euo pipefail
cd "$(dirname "$0")/.."
antsibull-changelog lint
antsibull-docs lint-collection-docs --plugin-docs --validate-collection-refs=all --skip-rstcheck .
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
antsibull-docs collection --use-current --squash-hierarchy --fail-on-error --dest-dir "$out" inferops.vllm >"$out/log" 2>&1 ||
  { cat "$out/log" >&2; exit 1; }
echo "docs: $(find "$out" -name '*.rst' | wc -l) pages render"
