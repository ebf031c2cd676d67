#!/bin/bash
# Downloads packages with apt, without root, and unpacks each into CACHE/PACKAGE-VERSION.
#
#   apt_headers.sh CACHE PACKAGE...
#
# They are the newest that Debian or Ubuntu has, whatever release this machine runs, from the mirrors
# and with the keys that its own sources name. If that fails, the last line on stderr says why.
#
# apt works in a temporary folder: the machine's configuration is read, and nothing is written there.
set -euo pipefail
export LC_ALL=C

work='' unpacking=''
trap 'rm -rf "$work" "$unpacking"' EXIT

fail() {
  echo "$*" >&2
  exit 1
}

# "NAMES SUITE...": what the release may be called in this machine's sources, with | between, and the
# suites that have the newest packages. A derivative counts as the distribution that it is based on.
newest_release() (
  ID='' ID_LIKE='' VERSION_CODENAME='' UBUNTU_CODENAME='' DEBIAN_CODENAME=''
  # shellcheck disable=SC1090
  . "${ORT_AIE_OS_RELEASE:-/etc/os-release}" # another file for tests
  case " $ID $ID_LIKE " in
    *' ubuntu '*) echo "${UBUNTU_CODENAME:-${VERSION_CODENAME:-devel}} devel" ;;
    *' debian '*)
      echo "(old)*stable|testing|unstable|${DEBIAN_CODENAME:-${VERSION_CODENAME:-sid}} sid experimental"
      ;;
    *) fail 'this is neither Debian nor Ubuntu nor built on them' ;;
  esac
)

# Prepares apt in $work for the packages $3..., with the machine's sources, of the release $1 (as
# newest_release prints it) unless that is empty. What is in the file $2 counts as installed.
private_apt() {
  local list=/etc/apt/sources.list parts=/etc/apt/sources.list.d file names suites suite change
  command -v apt-get >/dev/null || fail 'there is no apt-get on this machine'
  # Not in the cache: root's apt works as user _apt, who cannot enter root's home.
  work=$(mktemp -d "${TMPDIR:-/tmp}/ort_aie_apt.XXXXXXXX")
  chmod 755 "$work"
  mkdir -p "$work"/{sources,lists/partial,debs/partial}
  chown _apt "$work/debs" 2>/dev/null || true
  cp "$2" "$work/status"
  eval "$(apt-config shell list Dir::Etc::sourcelist/f parts Dir::Etc::sourceparts/d)"
  read -r names suites <<<"$1"
  for suite in ${suites:-own}; do
    change="/^(deb|suites:)/I s/([[:space:]:])($names)\\b/\\1$suite/g"
    # What says that a source needs no signature goes.
    for file in "$list" "$parts"/*.list "$parts"/*.sources; do
      [[ ! -f $file ]] || sed -E -e '/^(trusted|allow-[a-z-]+):/Id' \
        -e 's/\b(trusted|allow-[a-z-]+)=[a-z]+//Ig' ${names:+-e "$change"} \
        "$file" >"$work/sources/$suite-${file##*/}"
    done
  done
  # apt would take nothing from experimental if another suite has it.
  printf 'Package: %s\nPin: release a=experimental\nPin-Priority: 500\n' "${*:3}" >"$work/preferences"
  # This is read after the machine's own configuration. Its hooks and pins are for what is installed,
  # and of its indexes (translations, icons, ...) one is needed.
  cat >"$work/apt.conf" <<CONF
#clear APT::Update;
#clear Acquire::IndexTargets;
Acquire::IndexTargets::deb::Packages {
  MetaKey "\$(COMPONENT)/binary-\$(ARCHITECTURE)/Packages"; flatMetaKey "Packages";
  ShortDescription "Packages"; Description "\$(RELEASE)/\$(COMPONENT) \$(ARCHITECTURE) Packages"; };
APT::Get::AllowUnauthenticated "false";
Acquire { AllowInsecureRepositories "false"; AllowWeakRepositories "false"; };
Acquire { Retries "2"; http::Timeout "20"; https::Timeout "20"; };
Dir { State "$work"; State::lists "$work/lists"; State::status "$work/status"; };
Dir { Cache "$work"; Cache::archives "$work/debs"; };
Dir::Etc { sourcelist "/dev/null"; sourceparts "$work/sources"; };
Dir::Etc { preferences "$work/preferences"; preferencesparts "/dev/null"; };
CONF
  # A suite that a mirror lacks is an error, after the others have been read: what counts is whether
  # the packages are there.
  apt-get -c "$work/apt.conf" -q update >"$work/log" 2>&1 || true
}

# What apt complained of in $work/log, in one line, but for suites that a mirror lacks.
complaints() { grep -E '^[EW]: ' "$work/log" | grep -v 'not have a Release file' | tail -n 5 | tr '\n' ' '; }

# Lets apt-get download packages into $work/debs by the command $2... and unpacks them in the folder $1.
unpack() {
  local cache=$1 deb folder
  (cd "$work/debs" && apt-get -c "$work/apt.conf" -q "${@:2}") >>"$work/log" 2>&1 ||
    fail "apt-get $2: $(complaints)"
  mkdir -p "$cache" && [[ -w $cache ]] || fail "cannot write to $cache: set ORT_AIE_CACHE_DIR"
  for deb in "$work"/debs/*.deb; do
    folder=$(dpkg-deb --show --showformat='${Package}-${Version}' "$deb")
    folder=$cache/${folder//:/%}
    unpacking=$(mktemp -d "$cache/.unpacking.XXXXXXXX")
    dpkg-deb -x "$deb" "$unpacking"
    chmod -R u+rwX,go+rX "$unpacking"
    # If two processes get here, the second finds the first one's folder, with the same content.
    mv -T "$unpacking" "$folder" 2>/dev/null || rm -rf "$unpacking"
    [[ -d $folder ]] || fail "cannot write $folder"
    echo "$folder"
  done
}

main() {
  local release
  release=$(newest_release)
  private_apt "$release" /dev/null "${@:2}"
  unpack "$1" download "${@:2}"
}

# Another script may use the functions.
[[ ${BASH_SOURCE[0]} != "$0" ]] || main "$@"
