# Sourced: builds `_native` and `_cuda` in this tree, where Python finds them. Needs, for the python3 in PATH, MLX for
# CUDA and nanobind; besides, CMake, Ninja, a C++ compiler and CUDA's headers (CUDA_HOME).
#   . backend_metal/cuda/build.sh
# Returns 1 unless Python has the CUDA path then, with the end of the log of what failed; logs are in build/cuda/.

_pomona_logged() {
    local log=$1
    shift
    "$@" >"$log" 2>&1 && return 0
    echo "failed, see $log: $*" >&2
    tail -n 30 "$log" >&2
    return 1
}

_pomona_build_cuda() {
    local root build library
    root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd) || return 1
    build=$root/build/cuda
    mkdir -p "$build" || return 1
    _pomona_logged "$build/configure.log" cmake -S "$root" -B "$build" -G Ninja -DPOMONA_CUDA=ON \
        -DPython_EXECUTABLE="$(command -v python3)" || return 1
    _pomona_logged "$build/build.log" cmake --build "$build" --target _native _cuda native_sources || return 1
    # Ninja leaves each library where its CMakeLists.txt is.
    for library in "$build"/_native*.so "$build"/backend_metal/cuda/csrc/_cuda*.so "$build/native_sources.txt"; do
        cp --remove-destination "$library" "$root/backend_metal/" || return 1
    done
    _pomona_logged "$build/import.log" env PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" \
        python3 -P -c 'import sys
from backend_metal.device import GPU
sys.exit(None if GPU and GPU.name == "cuda" else f"backend_metal has no CUDA path, but {GPU and GPU.name}")' || return 1
}

_pomona_build_cuda
