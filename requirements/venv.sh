#!/usr/bin/env bash
# Make or refresh a virtual environment: venv.sh PYTHON FOLDER REQUIREMENTS
set -euo pipefail
python=$1 folder=$2 requirements=$3

command -v "$python" >/dev/null || { echo "make: $python is not installed (Python 3.11 or newer is needed)" >&2; exit 2; }
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "make: $python is Python $version; the controller needs 3.11 or newer (set PYTHON=…)" >&2
  exit 2
}

if [ ! -x "$folder/bin/python" ]; then
  if "$python" -c 'import ensurepip' 2>/dev/null; then
    "$python" -m venv "$folder"
  elif "$python" -m pip --version >/dev/null 2>&1; then
    # Debian splits ensurepip off; the system's own pip can fill the environment as well.
    "$python" -m venv --without-pip "$folder"
  else
    echo "make: $python can make no virtual environment: neither ensurepip nor pip is there." >&2
    echo "make: install it with: apt-get install python3-venv" >&2
    exit 2
  fi
fi

if [ -x "$folder/bin/pip" ]; then
  pip=("$folder/bin/python" -m pip)
else
  pip=("$python" -m pip --python "$folder/bin/python")
fi
echo "make: installing $requirements for Python $version into $folder (a minute or two the first time)"
"${pip[@]}" install --quiet --disable-pip-version-check -r "$requirements"
