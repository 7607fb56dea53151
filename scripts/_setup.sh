# Sourced by scripts/up, scripts/test and scripts/check: makes ready the virtual
# environment in .venv beside the checkout. After `set_up run` (report, dev, ray),
# $root is the checkout and $root/.venv/bin/python has what is needed.
#
# The warm path starts no Python: it compares the text that the environment was
# made from, kept in .venv/ready-KIND, with what stands in the checkout. The cold
# path is scripts/_install.py. Both write to standard error only.

root=$(CDPATH= cd -- "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

# Another environment, activated or leaked into this shell, must not leak in here.
unset VIRTUAL_ENV PYTHONPATH PYTHONHOME PYTHONSAFEPATH __PYVENV_LAUNCHER__

# Print the first interpreter that runs, is new enough and can make environments:
# a name on PATH may be a shim for a version that isn't installed.
find_python() {
    local candidate seen="" without_venv="" candidates=(python3 python3.13 python3.12 python3.11 python3.14 python)
    if [[ -n ${PYTHON:-} ]]; then
        candidates=("$PYTHON")
    fi
    for candidate in "${candidates[@]}"; do
        case $("$candidate" -I -c '
import sys
if sys.version_info < (3, 11):
    print("old")
else:
    try:
        import ensurepip, venv
    except ImportError:
        print("bare")
    else:
        print("good")
' 2>/dev/null) in
            good) printf '%s\n' "$candidate" && return ;;
            bare) without_venv=${without_venv:-$candidate} ;;
            old) seen=${seen:-$candidate} ;;
        esac
    done
    if [[ -n $without_venv ]]; then
        echo "tiedreq: $without_venv can't make virtual environments; install its venv module (Debian and Ubuntu: apt-get install python3-venv)" >&2
    elif [[ -n $seen ]]; then
        echo "tiedreq: needs Python 3.11 or newer; $seen is $("$seen" -I -c 'import platform; print(platform.python_version())')" >&2
    else
        echo "tiedreq: needs Python 3.11 or newer; none found${PYTHON:+ as $PYTHON} on PATH" >&2
    fi
    return 1
}

# The text that decides what is in the environment; settings of tools don't.
made_from() { # run | report | dev | ray
    echo "$root"
    sed '/^\[tool\./,$d' "$root/pyproject.toml"
    cat "$root/requirements/$1.txt"
}

set_up() { # run | report | dev | ray
    local kind=$1 python
    if [[ -x $root/.venv/bin/python && -f $root/.venv/ready-$kind ]] &&
        [[ $(<"$root/.venv/ready-$kind") == "$(made_from "$kind")" ]]; then
        return
    fi
    python=$(find_python) || exit 1
    "$python" -I "$root/scripts/_install.py" "$kind" >&2 || exit $?
}
