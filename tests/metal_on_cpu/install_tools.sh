#!/usr/bin/env bash
# Installs the system's packages that the tests of this folder run on (Debian 12 or later): clang and its
# sanitizers, lld, LLVM's tools, an emulator of arm64. The extra metal-tools has the rest.
set -euo pipefail

PACKAGES=(clang-22 lld-22 llvm-22 libclang-rt-22-dev qemu-user-static)

missing=()
for package in "${PACKAGES[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
    as_root=()
    [ "$(id -u)" -eq 0 ] || as_root=(sudo)
    "${as_root[@]}" apt-get update -qq
    for package in "${missing[@]}"; do
        if ! apt-cache show "$package" >/dev/null 2>&1; then
            echo "apt has no $package here; https://apt.llvm.org has it for most systems." >&2
            exit 1
        fi
    done
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
