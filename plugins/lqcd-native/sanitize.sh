#!/usr/bin/env bash
# Build with AddressSanitizer and UndefinedBehaviorSanitizer and run a reduced conformance suite.
#
#     PYTHON=python3 plugins/lqcd-native/sanitize.sh [build folder]
#
# PYTHON must have lqcd-core, nanobind, cmake, ninja, pytest and hypothesis. Nothing is installed: the extension stays in the build
# folder (a new one in the system's temporary folder by default).
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
python="${PYTHON:-python3}"
cxx="${CXX:-c++}"
build="${1:-$(mktemp -d)}"
mkdir -p "$build/site/lqcd_native" "$build/site/lqcd_native-0.1.0.dist-info"
bin="$(dirname "$("$python" -c 'import sys; print(sys.executable)')")"
export PATH="$bin:$PATH"
cmake -S "$here" -B "$build/cmake" -G Ninja -DPython_EXECUTABLE="$("$python" -c 'import sys; print(sys.executable)')" \
    -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_BUILD_TYPE=None -DLQCD_SANITIZE=ON -DLQCD_ISAS="baseline;avx2" > "$build/cmake.log"
ninja -C "$build/cmake" _native
cp "$here"/src/lqcd_native/*.py "$build"/cmake/_native*.so "$build/site/lqcd_native/"
printf 'Metadata-Version: 2.1\nName: lqcd-native\nVersion: 0.1.0\n' > "$build/site/lqcd_native-0.1.0.dist-info/METADATA"
printf '[lqcd]\nnative = lqcd_native.plugin\n' > "$build/site/lqcd_native-0.1.0.dist-info/entry_points.txt"
preload="$("$cxx" -print-file-name=libasan.so):$("$cxx" -print-file-name=libubsan.so):$("$cxx" -print-file-name=libstdc++.so)"
# Leaks are not looked for: the interpreter's own would drown them; the tests of flat memory do that.
cd "$build"
LD_PRELOAD="$preload" ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0 UBSAN_OPTIONS=print_stacktrace=1 \
    PYTHONPATH="$build/site" LQCD_TUNE=off OMP_NUM_THREADS=1 "$python" -m pytest -q -p no:cacheprovider --rootdir "$here" \
    -c "$here/pyproject.toml" "$here/tests/test_sanitized.py"
