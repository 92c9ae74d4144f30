#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# usage: packaging/build-criu.sh [--check] [DIR]
#
# Builds CRIU (4.2 or later) into DIR (default build/criu; the program is DIR/criu).
# Debian 12 has 3.17, which fails on newer kernels, so the source package comes from a
# newer suite of the mirror that this machine already uses: its own apt entries for its
# own suite, with the suite exchanged, in a private configuration that is thrown away. The
# machine's apt configuration is not touched.
#
# Exit status 77 when it cannot be done here (no Debian, no root for the packages that it
# needs, no network): callers skip their tests by name then. --check only tells whether
# DIR/criu is there and new enough.
set -u
min=40200
check=
[ "${1:-}" = --check ] && { check=1; shift; }
dir=${1:-build/criu}

version() {
	"$1" --version 2>/dev/null | awk '/^Version:/ { split($2, v, "."); print v[1] * 10000 + v[2] * 100 + v[3] }'
}
good() {
	[ -x "$1" ] && [ "$(version "$1")" -ge $min ] 2>/dev/null
}
skip() {
	echo "build-criu: $*" >&2
	exit 77
}

if good "$dir/criu"; then
	echo "$dir/criu"
	exit 0
fi
system=$(command -v criu || true)
if [ -n "$system" ] && good "$system"; then
	mkdir -p "$dir" && ln -sf "$system" "$dir/criu"
	echo "$dir/criu"
	exit 0
fi
[ -z "$check" ] || exit 77
command -v apt-get >/dev/null || skip "not a Debian system; install CRIU 4.2 or later by hand"
here=$(cd "$(dirname "$0")" && pwd)
[ "$(id -u)" = 0 ] || "$here/install-packages" criu
"$here/install-packages" criu || skip "packages that CRIU is built with cannot be installed"

mkdir -p "$dir" || exit 1
dir=$(cd "$dir" && pwd)
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
[ -n "$codename" ] || skip "this system does not say its suite"

# The mirrors (and their keys) that serve our own suite: "URI<TAB>Signed-By".
mirrors() {
	local f
	for f in /etc/apt/sources.list.d/*.sources; do
		[ -r "$f" ] && awk -v suite="$codename" '
			function flush(n, i, u) {
				if (types ~ /deb/ && (" " suites " ") ~ (" " suite " ")) {
					n = split(uris, u, " ")
					for (i = 1; i <= n; i++) print u[i] "\t" key
				}
				types = uris = suites = key = ""
			}
			/^[ \t]*$/ { flush(); next }
			/^#/ { next }
			{ name = tolower($1); $1 = ""; sub(/^ /, "") }
			name == "types:" { types = $0 }
			name == "uris:" { uris = $0 }
			name == "suites:" { suites = $0 }
			name == "signed-by:" { key = $0 }
			END { flush() }' "$f"
	done
	cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null | awk -v suite="$codename" '
		$1 == "deb" || $1 == "deb-src" {
			key = ""
			i = 2
			if ($2 ~ /^\[/) {
				for (; i <= NF; i++) {
					o = $i
					gsub(/[][]/, "", o)
					if (o ~ /^signed-by=/) key = substr(o, 11)
					if ($i ~ /\]$/) break
				}
				i++
			}
			if ($(i + 1) == suite) print $i "\t" key
		}'
}

apt() {
	DEBIAN_FRONTEND=noninteractive apt-get -q -o Dir::Etc::SourceList=/dev/null \
		-o Dir::Etc::SourceParts="$work/sources" -o Dir::State::Lists="$work/lists" \
		-o Dir::Cache="$work/cache" -o APT::Sandbox::User=root \
		-o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 "$@" </dev/null
}

mkdir -p "$work/sources" "$work/lists/partial" "$work/cache/archives/partial" "$work/src"
fetch() { # suite: unpacked source in $work/src/criu, or 1
	local suite=$1 v plain n found=
	mirrors | sort -u | while IFS=$'\t' read -r uri key; do
		printf 'Types: deb-src\nURIs: %s\nSuites: %s\nComponents: main\n' "$uri" "$suite"
		[ -z "$key" ] || printf 'Signed-By: %s\n' "$key"
		printf '\n'
	done >"$work/sources/criu.sources"
	[ -s "$work/sources/criu.sources" ] || skip "no apt entry of this machine serves $codename"
	apt update >"$work/log" 2>&1 || return 1
	for v in $(apt-cache -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$work/sources" \
		-o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" showsrc criu 2>/dev/null |
		awk '/^Version:/ { print $2 }'); do
		plain=${v#*:}
		plain=${plain%%-*}
		n=$(echo "$plain" | awk -F. '{ print $1 * 10000 + $2 * 100 + int($3) }')
		[ "$n" -ge $min ] && found=$v && break
	done
	[ -n "$found" ] || return 1
	echo "build-criu: $found of $suite" >&2
	rm -rf "$work/src" && mkdir "$work/src" && cd "$work/src" || return 1
	if apt source --download-only "criu=$found" >>"$work/log" 2>&1; then
		dpkg-source --no-check -x ./*.dsc criu >>"$work/log" 2>&1
		return
	fi
	# A mirror in motion may lack the packaging of a version whose index it still has. The
	# upstream archive, whose digest the signed index holds, is what is built in any case.
	set -- ./criu_"$plain".orig.tar.*
	[ -f "$1" ] || return 1
	apt-cache -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$work/sources" \
		-o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" showsrc "criu" |
		grep -q "$(sha256sum "$1" | cut -d' ' -f1)" || return 1
	mkdir criu && tar -xf "$1" -C criu --strip-components=1
}

unpacked=
for suite in trixie-backports forky sid; do
	(fetch "$suite") && unpacked=1 && break
done
if [ -z "$unpacked" ]; then
	tail -n 3 "$work/log" >&2
	skip "no suite of this machine's mirror gives the source of CRIU 4.2 or later"
fi
# Without nftables: a job's connections have both ends in the job and need no lock, and
# libnftables ends a program whose real uid is not root's, which ours may be (src/job/criu.c).
cat >"$work/pkg-config" <<'WRAP'
#!/bin/sh
case "$*" in *libnftables*) exit 1 ;; esac
exec pkg-config "$@"
WRAP
chmod +x "$work/pkg-config"
if ! nice make -C "$work/src/criu" -j2 NO_GNUTLS=1 PKG_CONFIG="$work/pkg-config" criu >"$dir/build.log" 2>&1; then
	tail -n 20 "$dir/build.log" >&2
	exit 1
fi
cp "$work/src/criu/criu/criu" "$dir/criu.new" && mv "$dir/criu.new" "$dir/criu"
good "$dir/criu" || { echo "build-criu: what was built does not run" >&2; exit 1; }
echo "$dir/criu"
