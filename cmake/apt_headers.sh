#!/bin/bash
# Lets apt download packages without root and unpacks them into a cache directory.
#
#   apt_headers.sh [--own-release] [--with-dependencies] CACHE_DIR MINIMUM_VERSION [PACKAGE...]
#
# Takes the newest version of each package, MINIMUM_VERSION or newer (of libonnxruntime-dev if none is
# named), and with --with-dependencies everything that they depend on. With --own-release the packages
# belong to the release that the machine runs, so that they work with its libc, and installed
# dependencies are left out. PACKAGE may be several names separated by |: the first that apt finds
# counts. Prints the directory of every unpacked package, CACHE_DIR/PACKAGE-VERSION, on stdout. If
# that fails, the last line on stderr is "apt_headers: REASON" and the exit status is 1.
#
# apt runs with separate lists, state, cache and sources; the machine's are read, never written.
# The mirror and its Signed-By are those of the machine's own configuration. Only suites are added,
# without --own-release: sid and experimental on Debian, devel on Ubuntu.
#
# ORT_AIE_OS_RELEASE names another os-release file (for tests).
set -euo pipefail
export LC_ALL=C

work='' unpacked=''

cleanup() { rm -rf ${work:+"$work"} ${unpacked:+"$unpacked"}; }
trap cleanup EXIT

fail() {
  echo "apt_headers: $*" >&2
  exit 1
}

# apt's own complaints, without its progress lines: one line, short enough for a message.
complaints() {
  { grep -hE '^[EW]: ' "$@" || true; } | grep -v 'Some index files' | sort -u | tail -n 4 |
    tr '\n' ' ' | cut -c -600 || true
}

# One record for every (URI, suite) of a file in apt's one-line format:
# URI, suite, components, Signed-By, with tabs between.
read_list() {
  awk '
    $1 == "deb" {
      line = $0; signed = ""
      sub(/^[ \t]*deb[ \t]+/, "", line)
      if (line ~ /^\[/) {
        options = line
        sub(/\].*/, "", options); sub(/^\[/, "", options)
        sub(/^[^]]*\][ \t]*/, "", line)
        count = split(options, option, /[ \t]+/)
        for (i = 1; i <= count; i++)
          if (tolower(option[i]) ~ /^signed-by\+?=/)
            signed = substr(option[i], index(option[i], "=") + 1)
      }
      sub(/[ \t]*#.*/, "", line)
      count = split(line, word, /[ \t]+/)
      components = ""
      for (i = 3; i <= count; i++) components = components " " word[i]
      if (word[1] !~ /^cdrom:/) print word[1] "\t" word[2] "\t" components " \t" signed
    }' "$1"
}

# The same records of a file in deb822 format. A Signed-By that is a whole key has several lines;
# they are joined with \001.
read_sources() {
  awk '
    function flush(  types, uris, suites, uri, suite, i, j) {
      types = " " field["types"] " "; gsub(/[ \t\001]+/, " ", types)
      if (types ~ / deb / && tolower(field["enabled"]) !~ /^(no|false|without|off|disable|0)$/) {
        gsub(/\001/, " ", field["uris"]); gsub(/\001/, " ", field["suites"])
        gsub(/\001/, " ", field["components"])
        uris = split(field["uris"], uri, /[ \t]+/)
        suites = split(field["suites"], suite, /[ \t]+/)
        for (i = 1; i <= uris; i++)
          for (j = 1; j <= suites; j++)
            if (uri[i] != "" && suite[j] != "" && uri[i] !~ /^cdrom:/)
              print uri[i] "\t" suite[j] "\t " field["components"] " \t" field["signed-by"]
      }
      split("", field); name = ""
    }
    /^#/ { next }
    /^[ \t]*$/ { flush(); next }
    /^[ \t]/ { if (name != "") field[name] = field[name] "\001" $0; next }
    {
      colon = index($0, ":"); name = tolower(substr($0, 1, colon - 1))
      value = substr($0, colon + 1); gsub(/^[ \t]+|[ \t]+$/, "", value); field[name] = value
    }
    END { flush() }' "$1"
}

read_configuration() {
  local list=/etc/apt/sources.list parts=/etc/apt/sources.list.d file
  eval "$(apt-config shell list Dir::Etc::sourcelist/f parts Dir::Etc::sourceparts/d)"
  for file in "$list" "$parts"/*.list "$parts"/*.sources; do
    [[ -f $file && -r $file ]] || continue
    case $file in
      *.sources) read_sources "$file" ;;
      *) read_list "$file" ;;
    esac
  done
}

# "debian CODENAME" or "ubuntu CODENAME"; derivatives count as the distribution they are based on.
distribution() (
  ID='' ID_LIKE='' VERSION_CODENAME='' UBUNTU_CODENAME='' DEBIAN_CODENAME=''
  # shellcheck disable=SC1090
  . "${ORT_AIE_OS_RELEASE:-/etc/os-release}"
  case " $ID $ID_LIKE " in
    *' ubuntu '*) echo "ubuntu ${UBUNTU_CODENAME:-$VERSION_CODENAME}" ;;
    *' debian '*) echo "debian ${DEBIAN_CODENAME:-$VERSION_CODENAME}" ;;
  esac
)

# The private sources, in deb822 format, from the records of read_configuration on stdin.
private_sources() {
  local base=$1 codename=$2 own_release=$3 uri suite components signed suites component
  declare -A seen=()
  while IFS=$'\t' read -r uri suite components signed; do
    case $base:$suite in
      "debian:$codename" | debian:stable | debian:oldstable | debian:testing | debian:unstable | \
        debian:sid | debian:experimental)
        [[ $components == *' main '* ]] || continue
        suites='sid experimental' component=main
        ! $own_release || suites=$codename
        ;;
      "ubuntu:$codename")
        suites="$suite devel" component='main universe'
        ! $own_release || suites=$suite
        ;;
      "ubuntu:$codename"-*) suites=$suite component='main universe' ;;
      *) continue ;;
    esac
    [[ -z ${seen[$uri $suites]:-} ]] || continue
    seen[$uri $suites]=1
    # Targets: no translations, no Contents, no AppStream data, whatever the machine has configured.
    printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: %s\nTargets: Packages\n' \
      "$uri" "$suites" "$component"
    if [[ -n $signed ]]; then printf 'Signed-By: %s\n' "$signed" | tr '\001' '\n'; fi
    echo
  done
}

# -c is read after the machine's own configuration. The machine's hooks are for root and for its
# own lists. Its preferences (pins) are for installed packages.
private_configuration() {
  cat <<CONF
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear APT::Update::Post-Invoke-Stats;
APT::Get::AllowUnauthenticated "false";
Acquire::AllowInsecureRepositories "false";
Acquire::AllowWeakRepositories "false";
Acquire::AllowDowngradeToInsecureRepositories "false";
Acquire::Retries "2";
Acquire::http::Timeout "20";
Acquire::https::Timeout "20";
Dir::State "$work/state";
Dir::State::lists "$work/state/lists";
Dir::State::status "$work/state/status";
Dir::Cache "$work/cache";
Dir::Cache::archives "$work/cache/archives";
Dir::Etc::sourcelist "$work/private.sources";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
CONF
}

# Versions of a package that apt finds, newest first.
versions_of() {
  apt-cache -c "$work/apt.conf" madison "$1" 2>/dev/null |
    awk -F'[ |]+' '{ sub(/^ +/, ""); print $2 }' | sort -urV || true
}

# Prints the directory of PACKAGE in VERSION once it is in the CACHE; fails if apt cannot get it.
unpack() {
  local cache=$1 package=$2 version=$3 destination
  destination=$cache/$package-${version//:/%}
  if [[ ! -d $destination ]]; then
    apt-get -c "$work/apt.conf" -q download "$package=$version" >>"$work/download.log" 2>&1 ||
      return 1
    unpacked=$(mktemp -d "$cache/.unpacking.XXXXXXXX") &&
      dpkg-deb -x "$work/download/$package"_*.deb "$unpacked" &&
      chmod -R u+rwX,go+rX "$unpacked" || fail "cannot unpack $package $version into $cache"
    rm "$work/download/$package"_*.deb
    # If two processes get here, the second finds the first one's directory, with the same content.
    mv -T "$unpacked" "$destination" 2>/dev/null || [[ -d $destination ]] ||
      fail "cannot write $destination"
    rm -rf "$unpacked"
  fi
  echo "$destination"
}

# Prints the directory of the newest version of PACKAGE that will do.
unpack_newest() {
  local cache=$1 minimum=$2 package=$3 versions version
  versions=$(versions_of "$package")
  [[ -n $versions ]] || fail "apt finds no $package: $(complaints "$work/update.log")"
  : >"$work/download.log"
  for version in $versions; do
    dpkg --compare-versions "$version" ge "$minimum" || continue
    ! unpack "$cache" "$package" "$version" || return 0
  done
  [[ ! -s $work/download.log ]] ||
    fail "apt cannot download $package: $(complaints "$work/download.log")"
  fail "apt finds only $package $(echo $versions), and $minimum is the oldest that will do"
}

# The first of the names in A|B|C that apt finds; the last one if it finds none.
choose() {
  local name
  for name in ${1//|/ }; do
    [[ -z $(versions_of "$name") ]] || break
  done
  echo "$name"
}

# "PACKAGE VERSION" of all that the arguments (PACKAGE=VERSION) need besides what is installed,
# themselves left out. The private status says what that is: without --own-release nothing.
dependencies() {
  apt-get -c "$work/apt.conf" -q -s -o APT::Install-Recommends=false install "$@" \
    2>"$work/dependencies.log" | awk '$1 == "Inst" { sub(/^\(/, "", $3); print $2, $3 }' |
    grep -vxF "$(printf '%s\n' "${@/=/ }")" || true
  ! grep -q '^E: ' "$work/dependencies.log" ||
    fail "apt cannot satisfy what $* depend on: $(complaints "$work/dependencies.log")"
}

main() {
  local own_release=false with_dependencies=false
  if [[ ${1:-} == --own-release ]]; then own_release=true && shift; fi
  if [[ ${1:-} == --with-dependencies ]]; then with_dependencies=true && shift; fi
  [[ $# -ge 2 ]] || fail 'usage: apt_headers.sh [--own-release] [--with-dependencies]' \
    'CACHE_DIR MINIMUM_VERSION [PACKAGE...]'
  local cache=$1 minimum=$2 tool base codename package version directory
  local packages=("${@:3}") directories=() exact=()
  [[ ${#packages[@]} -gt 0 ]] || packages=(libonnxruntime-dev)
  for tool in apt-get apt-cache apt-config dpkg dpkg-deb; do
    command -v "$tool" >/dev/null || fail "there is no $tool on this machine"
  done
  [[ -r ${ORT_AIE_OS_RELEASE:-/etc/os-release} ]] || fail 'there is no /etc/os-release'
  read -r base codename <<<"$(distribution)" || true
  [[ -n $base ]] || fail 'this is neither Debian nor Ubuntu nor built on them'
  mkdir -p "$cache" 2>/dev/null && [[ -w $cache ]] ||
    fail "cannot write to the cache directory $cache"

  # Not inside the cache: root's apt works as user _apt, who cannot enter root's home.
  work=$(mktemp -d "${TMPDIR:-/tmp}/ort_aie_apt.XXXXXXXX")
  chmod 755 "$work"
  mkdir -p "$work"/{state/lists/partial,cache/archives/partial,download}
  : >"$work/state/status"
  if $own_release; then
    local installed=/var/lib/dpkg/status
    eval "$(apt-config shell installed Dir::State::status/f)"
    cat "$installed" >"$work/state/status" || fail "cannot read $installed"
  fi
  if [[ $(id -u) == 0 ]] && id -u _apt >/dev/null 2>&1; then chown _apt "$work/download"; fi
  read_configuration | private_sources "$base" "$codename" "$own_release" >"$work/private.sources"
  [[ -s $work/private.sources ]] ||
    fail "apt's sources on this machine name no $base archive for '$codename'"
  private_configuration >"$work/apt.conf"

  # A suite that a mirror lacks makes update fail after it has read the others: what counts is
  # whether the packages are there.
  apt-get -c "$work/apt.conf" -q update >"$work/update.log" 2>&1 || true

  cd "$work/download"
  for package in "${packages[@]}"; do
    package=$(choose "$package")
    # No pipe and no $(): `unpacked` and `fail` are this shell's.
    unpack_newest "$cache" "$minimum" "$package" >"$work/directory"
    directory=$(<"$work/directory")
    version=${directory#"$cache/$package-"}
    directories+=("$directory") exact+=("$package=${version//%/:}")
  done
  if $with_dependencies; then
    dependencies "${exact[@]}" >"$work/dependencies"
    while read -r package version; do
      : >"$work/download.log"
      unpack "$cache" "$package" "$version" >"$work/directory" ||
        fail "apt cannot download $package $version: $(complaints "$work/download.log")"
      directories+=("$(<"$work/directory")")
    done <"$work/dependencies"
  fi
  printf '%s\n' "${directories[@]}"
}

main "$@"
