#!/bin/bash
# As cmake/apt_headers.sh, with everything that the packages depend on.
#
#   apt_packages.sh [--own-release] CACHE PACKAGE...
#
# With --own-release they belong to the release that the machine runs, so that they work with its libc,
# and installed dependencies are left out. PACKAGE may be several names separated by |: the first that
# apt finds counts.
. "$(dirname "${BASH_SOURCE[0]}")/../../../cmake/apt_headers.sh"

release='' installed=/var/lib/dpkg/status
if [[ $1 == --own-release ]]; then
  shift
  eval "$(apt-config shell installed Dir::State::status/f)"
else
  release=$(newest_release)
  installed=/dev/null
fi
private_apt "$release" "$installed" "${@:2}"
packages=()
for names in "${@:2}"; do
  for name in ${names//|/ }; do
    # shellcheck disable=SC2154
    ! apt-cache -c "$work/apt.conf" show "$name" >>"$work/log" 2>&1 || break
  done
  packages+=("$name")
done
unpack "$1" install --download-only --yes --reinstall --no-install-recommends "${packages[@]}"
