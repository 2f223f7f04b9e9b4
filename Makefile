# The front door. `make refit` shows the main job; `make check` runs every CPU test. Both install what is missing, by
# apt-get, which they say before; `make DEPS=no ..` installs nothing.
# To work on xfer use the presets: cmake --preset dev && cmake --build --preset dev && ctest --preset dev

.POSIX:
.NOTPARALLEL: # targets share build/, and each builds with JOBS
.PHONY: all refit deps deb wheel cuda-12 check check-deps site docs-check frameworks coverage valgrind mutants clean

DEPS = yes
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
MODEL = models/qwen3-30b-a3b.json
TRAIN = megatron:tp2,dp2,ep4
GEN = vllm:tp4

# The libraries and programs, as a user wants them, in build/.
all: deps
	cmake --preset release -DXFER_TESTS=OFF
	cmake --build --preset release --parallel $(JOBS)
	@echo 'The programs are in build/bin, the libraries in build/lib.'

# In a build of its own: it moves between threads of this host, and kernels for GPUs take minutes.
refit: deps
	cmake --preset release -B build/refit -DXFER_CUDA=OFF -DXFER_TESTS=OFF
	cmake --build build/refit --parallel $(JOBS) --target xfer_refit
	build/refit/bin/xfer_refit --model $(MODEL) --layers 0-1 --train $(TRAIN) --gen $(GEN)

# The Python package with libraries, programs and model tables inside, in build/dist/; for the CUDA toolkits that are there.
wheel: deps
	.ci/wheel

# One more, for `make cuda-12 wheel` beside CUDA 13: a toolkit of CUDA 12 in build/cuda-12, of Debian's and NVIDIA's packages.
cuda-12: deps
	.ci/cuda12

# Debian packages, in build/package/, tried in a fresh root where mmdebstrap is there.
deb:
	DEPS=$(DEPS) .ci/need build deb
	.ci/packages $(JOBS)

deps:
	DEPS=$(DEPS) .ci/need build

# Warnings are errors: gcc without and with CUDA, all tests; then clang, whose builds are under sanitizers, the tests again.
check: check-deps
	.ci/check $(JOBS)

# What needs gigabytes of wheels: the tests of the Python package with torch, then vLLM and Megatron themselves answer what
# they make of checkpoints; half an hour, 8 GB in FRAMEWORKS.
FRAMEWORKS = build/frameworks
frameworks: check-deps all
	.ci/frameworks
	tests/refit/frameworks/run $(FRAMEWORKS) build/bin
	tests/frameworks/run $(FRAMEWORKS) build/lib/libxfer.so

check-deps:
	DEPS=$(DEPS) .ci/need build check

# The pages of README, docs and the reference of C, Python and the programs: build/site/html/index.html.
site: check-deps all
	docs/site/build.sh build build/site

# Every command of README and guides, as written, in a fresh clone: in a fresh root of SUITE where mmdebstrap is there.
SUITE = bookworm
docs-check:
	.ci/docs $(SUITE)

coverage: check-deps
	DEPS=$(DEPS) .ci/need coverage
	cmake --preset coverage
	cmake --build --preset coverage --parallel $(JOBS)
	ctest --preset coverage --parallel $(JOBS)
	cmake --build --preset coverage --target coverage-report

valgrind: check-deps
	cmake --preset gcc
	cmake --build --preset gcc --parallel $(JOBS)
	.ci/valgrind build/gcc $(JOBS)

clean:
	rm -rf build

# What tests would not notice: 400 changes of the source, all in one build, one at a time; an hour. See tests/README.md.
MUTANTS = --count 400
mutants: check-deps
	nice tests/mutants/mutants.py $(MUTANTS)
