# SPDX-License-Identifier: Apache-2.0
# A front for meson that also sets a machine up. Everything is built in build/.
#
#   make             build
#   make demo        a campus in a box: lend, run, reclaim, move, resume (under 90 s)
#   make check       all quick tests;  make check-long  also the long ones
#   make bench       all measurements; make bench-NAME  one of them
#   make install     as root, below /usr/local (or DESTDIR, PREFIX)
BUILD ?= build
PREFIX ?= /usr/local
BENCHES = transfer edge policy guest streams volunteers sandbox

all: $(BUILD)/build.ninja
	@ninja -C $(BUILD)

packages-build:
	@packaging/install-packages build

packages-test:
	@packaging/install-packages build test

packages-bench:
	@packaging/install-packages build test bench

# Meson writes this file; afterwards ninja itself notices changed build files.
$(BUILD)/build.ninja: | packages-build
	@meson setup --prefix $(PREFIX) $(BUILD)

demo: packages-build
	@$(MAKE) --no-print-directory all
	@mkdir -p $(BUILD)/demo
	@$(BUILD)/src/cli/reclaim lab run examples/demo/demo.yaml --json $(BUILD)/demo/report.json

check: packages-test
	@$(MAKE) --no-print-directory all
	@$(MAKE) --no-print-directory test-deps criu
	@meson test -C $(BUILD) --no-rebuild --no-suite long --print-errorlogs

# Packages that came after the first configuration (cmocka) need another look.
test-deps:
	@grep -q cmocka $(BUILD)/meson-info/intro-dependencies.json || \
		{ meson setup --reconfigure $(BUILD) && ninja -C $(BUILD); }

# Debian 12's is too old. Where it cannot be had, its tests are left out by name.
criu:
	@[ $$(id -u) != 0 ] || packaging/build-criu.sh $(BUILD)/criu >/dev/null || \
		echo "check: no CRIU 4.2 here: the tests of unmodified programs are left out"

check-long: check
	@meson test -C $(BUILD) --no-rebuild --suite long --print-errorlogs --logbase long
	@meson setup --reconfigure -Db_sanitize=address,undefined -Db_lundef=false $(BUILD)-asan 2>/dev/null || \
		meson setup -Db_sanitize=address,undefined -Db_lundef=false $(BUILD)-asan
	@ninja -C $(BUILD)-asan
	@rm -f $(BUILD)-asan/sanitizer.*
	@ASAN_OPTIONS=$(SANITIZER) UBSAN_OPTIONS=$(SANITIZER) \
		meson test -C $(BUILD)-asan --no-rebuild --no-suite long --no-suite system --print-errorlogs
	@ASAN_OPTIONS=$(SANITIZER):detect_leaks=0 UBSAN_OPTIONS=$(SANITIZER) \
		meson test -C $(BUILD)-asan --no-rebuild --suite system --print-errorlogs --logbase system
	@for f in $(BUILD)-asan/sanitizer.*; do [ ! -s "$$f" ] || { cat "$$f"; exit 1; }; done

# What a program does not survive is written beside the build, also by those whose output nobody sees.
SANITIZER = halt_on_error=1:abort_on_error=1:log_path=$(abspath $(BUILD))-asan/sanitizer

bench: $(addprefix bench-,$(BENCHES))

$(addprefix bench-,$(BENCHES)): bench-%: packages-bench
	@$(MAKE) --no-print-directory all
	@bench/$*/run $(BUILD)

install: all
	@meson install -C $(BUILD) --no-rebuild

clean:
	@rm -rf $(BUILD) $(BUILD)-asan

.PHONY: all demo check check-long test-deps criu bench install clean packages-build packages-test \
	packages-bench $(addprefix bench-,$(BENCHES))
