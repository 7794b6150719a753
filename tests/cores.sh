#!/usr/bin/env bash
# Judge the demo inventory with every supported ansible-core that a Python on this machine can run, and
# compare the verdicts. A release whose Python is missing is named as untested.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python_for() {
  local version
  for version in "$@"; do
    for candidate in "$(command -v "python$version" || true)" "${PYENV_ROOT:-/nonexistent}"/versions/"$version".*/bin/python; do
      [ -x "$candidate" ] && "$candidate" -c 'import venv, ensurepip' 2>/dev/null && { echo "$candidate"; return; }
    done
  done
}

expected="" failed=0
for core in 2.18.19 2.19.14 2.20.10 2.21.5; do
  case $core in 2.18.*|2.19.*) python=$(python_for 3.11 3.12 3.13) ;; *) python=$(python_for 3.12 3.13 3.14) ;; esac
  if [ -z "$python" ]; then
    echo "ansible-core $core: untested, no Python for it on this machine"
    continue
  fi
  "$python" -m venv "$work/$core"
  "$work/$core/bin/python" -m pip install --quiet --disable-pip-version-check "ansible-core==$core" 2>/dev/null
  ANSIBLE_CONFIG=ansible.cfg ANSIBLE_HOME="$work/home" "$work/$core/bin/ansible-playbook" inferops.vllm.preflight -i inventories/demo \
    -e preflight_fail_on=never -e preflight_report_dir="$work/reports" >"$work/log" 2>&1 || { cat "$work/log"; failed=1; continue; }
  verdicts=$("$python" -c 'import json, sys; print(" ".join("%s=%s" % (n, v["verdict"]) for n, v in json.load(open(sys.argv[1]))["nodes"].items()))' \
    "$work/reports/preflight.json")
  expected=${expected:-$verdicts}
  [ "$verdicts" = "$expected" ] || failed=1
  echo "ansible-core $core on $("$python" -V): $verdicts"
done
exit "$failed"
