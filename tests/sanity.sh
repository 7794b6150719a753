#!/usr/bin/env bash
# Build the artefact, install it as a user would, and run ansible-test sanity on the installed copy.
# ansible-test looks at nothing inside a git-ignored folder or the symlink farm, so the copy lives in a
# temporary folder; a planted fault proves each time that the gate bites.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

ansible-galaxy collection build --force --output-path "$work" . >"$work/build.log" 2>&1 || { cat "$work/build.log" >&2; exit 1; }
artefact=$(echo "$work"/inferops-vllm-*.tar.gz)
echo "sanity: $(basename "$artefact") has $(stat -c %s "$artefact") bytes"
ansible-galaxy collection install --offline --no-deps --force -p "$work/installed" "$artefact" >"$work/install.log" 2>&1 ||
  { cat "$work/install.log" >&2; exit 1; }

# ansible-test makes virtual environments and would fetch pip's installer; ensurepip has the same.
core=$(python3 -c 'from ansible.release import __version__ as v; print(v)')
cache=$HOME/.ansible/test/cache
mkdir -p "$cache"
for name in $(python3 - <<'PY'
import pathlib, re
import ansible_test._internal.python_requirements as m
text = pathlib.Path(m.__file__).read_text()
print(" ".join(sorted({"get_pip_%s.py" % v.replace(".", "_") for v in re.findall(r"['\"](2\d\.\d(?:\.\d)?)['\"]", text)})))
PY
); do
  [ -e "$cache/$name" ] || printf 'import ensurepip\nensurepip.bootstrap(default_pip=True)\n' >"$cache/$name"
done

root=$work/installed/ansible_collections/inferops/vllm
(cd "$root" && git init -q . && git add -A && git -c user.name=t -c user.email=t@example.com commit -qm artefact) >/dev/null
run() { (cd "$root" && LC_ALL=C.UTF-8 ansible-test sanity --python "$python" "$@"); }
if ! run >"$work/sanity.log" 2>&1; then
  grep -A9 -E '^(ERROR|FATAL)' "$work/sanity.log" >&2 || tail -n 80 "$work/sanity.log" >&2
  exit 1
fi

printf 'def f():\n    print ("planted"\n' >"$root/plugins/modules/planted.py"
if run --test compile plugins/modules/planted.py >"$work/planted.log" 2>&1; then
  echo "sanity: ansible-test passed a module that does not compile: the gate is broken" >&2
  exit 1
fi
echo "sanity: clean with ansible-core $core on Python $python; a planted fault is caught"
