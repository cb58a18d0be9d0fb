#!/usr/bin/env bash
# Unpacks Debian packages into a folder. It does not install them and does not need root.
#
#   usage: debian_package.sh FOLDER SUITE PACKAGE...
#
# The packages come from the mirror that this machine's apt uses, from SUITE (a release, or "own"
# for the release of this machine), and apt checks their signatures. FOLDER is written completely or
# not at all. The package lists are kept beside FOLDER, since downloading and reading them takes
# seconds.
set -euo pipefail
folder=$1 suite=$2
shift 2
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/tree"

# The release name of the main archive has no suffix such as -updates or -security.
read -r mirror release < <(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' \
  'Created-By: Packages' | awk '$2 !~ /-/ && $1 ~ /debian\/?$/ { print; exit }') || true
[ -n "${mirror:-}" ] || { echo "apt has no Debian mirror; run apt-get update first" >&2; exit 1; }
[ "$suite" = own ] && suite=$release
echo "deb [signed-by=$keyring] $mirror $suite main" >"$work/sources.list"

state=$(dirname "$folder")/apt-$suite
mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
options=(-o "Dir::Etc::sourcelist=$work/sources.list" -o "Dir::Etc::sourceparts=-"
         -o "Dir::State::Lists=$state/lists" -o "Dir::Cache=$state/cache"
         -o "APT::Sandbox::User=$(id -un)" -o "Acquire::http::Timeout=20" -o "Acquire::Retries=2")
fetch() { (cd "$work" && apt-get "${options[@]}" -qq download "$@"); }
[ -e "$state/updated" ] && fetch "$@" 2>/dev/null || {
  apt-get "${options[@]}" -qq update
  touch "$state/updated"
  fetch "$@"
}
for package in "$work"/*.deb; do dpkg-deb -x "$package" "$work/tree"; done
rm -rf "$folder"
mkdir -p "$(dirname "$folder")"
mv "$work/tree" "$folder"
