# The two commands of the README. Everything is a CMake preset underneath.
.PHONY: run test build lint fuzz-short format clean

VERBATIM := build/release/src/cli/verbatim

build:
	cmake --preset release
	cmake --build --preset release

# Writes a small NVFP4 checkpoint in the released layout, inspects it, plans it and generates from it.
run:
	cmake --preset release
	cmake --build --preset release --target verbatim
	rm -rf build/demo
	$(VERBATIM) synth build/demo --size tiny --form nvfp4 --seed 1
	$(VERBATIM) inspect build/demo
	$(VERBATIM) plan build/demo --ranks 2 --context 4096 --memory 1GiB
	$(VERBATIM) generate build/demo --ids 11,42,7,300,5 --tokens 32

test: build
	ctest --preset release

# clang-format and clang-tidy.
lint:
	scripts/lint.sh

# Every fuzz target for SECONDS seconds (CI: 5).
fuzz-short:
	scripts/fuzz.sh $(or $(SECONDS),10)

format:
	git ls-files '*.cc' '*.h' '*.cu' '*.cuh' | xargs clang-format -i

clean:
	rm -rf build
