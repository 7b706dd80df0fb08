# A short front for meson and ninja. Each target installs what it lacks (tools/install-deps says
# what that is), so that it works on a bare machine; tools/make gets make itself first.

PREFIX ?= /usr/local
DESTDIR ?=
SEEDS ?= 10000
FUZZ_SECONDS ?= 600
HOURS ?= 8

# The simulator and the benchmarks are built with the tests; plain `make` needs none of them.
with_tests = tools/configure build -Dtests=true

.PHONY: all
all: ## build/muster and build/libmuster.so
	@tools/install-deps build
	@tools/configure build
	@ninja -C build

.PHONY: demo
demo: all ## three nodes train, one dies, a new one joins
	@tools/demo

.PHONY: test
test: ## everything that must hold before a commit
	@tools/install-deps test
	@tools/run-tests

.PHONY: test-peers
test-peers: ## the programs and libraries of others at the other end; gets them by name; SUITES="go_libp2p" for some
	@tools/install-deps test peers
	@$(with_tests)
	@meson compile -C build muster:executable muster:shared_library peerload wire clock
	@tools/test-peers $(SUITES)

.PHONY: asan tsan
asan: ## all tests under ASan+UBSan
	@tools/install-deps test
	@tools/run-tests asan-all
tsan: ## the tests that use threads under TSan
	@tools/install-deps test
	@tools/run-tests tsan

.PHONY: bench
bench: ## ratios against PyTorch and Redis in the same minutes
	@tools/install-deps bench
	@$(with_tests)
	@ninja -C build
	@bench/run

.PHONY: sim
sim: ## SEEDS=10000 simulated runs of each SCENARIO
	@tools/install-deps test
	@$(with_tests)
	@ninja -C build
	@tools/sim $(SEEDS) $(SCENARIO)

.PHONY: fuzz fuzz-merge
fuzz: ## each fuzz target for FUZZ_SECONDS=600
	@tools/install-deps fuzz
	@FUZZ_SECONDS=$(FUZZ_SECONDS) tools/fuzz run $(TARGETS)
fuzz-merge: ## the inputs that reached new code join the corpus in the tree
	@tools/install-deps fuzz
	@tools/fuzz merge $(TARGETS)

.PHONY: fuzz-live
fuzz-live: FUZZ_SECONDS = 1800
fuzz-live: ## mutated conversations at live servers, FUZZ_SECONDS=1800 for each of TARGETS
	@tools/install-deps test
	@FUZZ_SECONDS=$(FUZZ_SECONDS) tools/fuzz-live $(TARGETS)

.PHONY: soak
soak: ## jobs on several hosts for HOURS=8, while everything around them changes
	@tools/install-deps test
	@tools/soak $(HOURS)

.PHONY: install
install: ## to DESTDIR and PREFIX=/usr/local
	@tools/install-deps build
	@tools/configure build -Dprefix=$(PREFIX)
	@ninja -C build
	@meson install -C build --no-rebuild $(if $(DESTDIR),--destdir $(abspath $(DESTDIR)))

.PHONY: deb
deb: ## Debian packages in build-deb
	@tools/install-deps deb
	@tools/deb

.PHONY: wheel tarball
wheel: ## a Python wheel in build-wheel, with the command and all that it needs
	@tools/install-deps wheel
	@tools/wheel wheel
tarball: ## the same as an archive that works wherever it is unpacked
	@tools/install-deps wheel
	@tools/wheel tarball

.PHONY: try-wheel
try-wheel: wheel tarball ## installs the wheel on bare systems, old and new, as an ordinary user
	@tools/install-deps fresh
	@tools/try-wheel

.PHONY: try-install
try-install: deb ## installs them under a booted systemd, and runs docs/install.md there
	@tools/install-deps test
	@/usr/bin/python3 tests/hosts/service.py --packages=build-deb/packages

.PHONY: check-deploy
check-deploy: ## deploy/ against the schemas of Kubernetes and others, which it gets by name
	@tools/install-deps deploy
	@tools/check-deploy

.PHONY: format check-format
format: ## clang-format on every file
	@tools/install-deps format
	@find include src sim tests bench examples -name '*.[ch]' -exec clang-format -i {} +
check-format: ## is there anything `make format` would change?
	@tools/install-deps format
	@tools/check-format

.PHONY: abi
abi: ## can programs that use the library of BASE=REVISION go on with this one?
	@tools/install-deps abi
	@tools/abi --base $(BASE)

.PHONY: clean
clean: ## remove every build directory
	rm -rf build build-*

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z][a-z -]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 16
