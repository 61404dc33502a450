#!/usr/bin/env bash
# Makes the virtual environment $1 with $PYTHON and installs tested.txt and this checkout into it.
# Where torch_npu has no wheel, the rest is installed and $1/no-torch-npu says so.
set -euo pipefail

venv=$1
python=${PYTHON:-python3}
here=$(dirname "$0")
tested=$here/tested.txt

if ! "$venv/bin/python" -m pip --version > /dev/null 2>&1; then
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
        echo "$python is $("$python" -V 2>&1 || true), and Python 3.10 or newer is needed: name one with PYTHON=..." >&2
        exit 1
    }
    "$python" -m venv --clear "$venv"
fi

# Nothing that runs during the installation may import torch_npu, which wants an NPU.
export TORCH_DEVICE_BACKEND_AUTOLOAD=0
# DeepSpeed compiles its operators when they are first used, not now.
export DS_BUILD_OPS=0

pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }
named() { grep -E "^($1)==" "$tested"; }

pip install -q $(named 'setuptools|wheel')
# torch before the rest: the setup of DeepSpeed imports it.
pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} $(named torch)
grep -v '^torch_npu' "$tested" > "$venv/tested-without-npu.txt"
pip install --no-build-isolation -r "$venv/tested-without-npu.txt"

rm -f "$venv/no-torch-npu"
named torch_npu > "$venv/tested-npu.txt"
pip install -r "$venv/tested-npu.txt" || true
"$venv/bin/python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch_npu") is None)' ||
    echo "torch_npu could not be installed for $("$venv/bin/python" -V) on $(uname -sm) (see pip's message above):" \
        "nothing that needs an NPU will run." | tee "$venv/no-torch-npu"

pip install -q --no-build-isolation --no-deps -e "$here/.."
