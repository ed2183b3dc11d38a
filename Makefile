# The two commands of the README. Everything is a CMake preset underneath.
.PHONY: run test build lint format clean

build:
	cmake --preset release
	cmake --build --preset release

# Writes a small NVFP4 checkpoint in the released layout, inspects it and plans it.
run: build
	rm -rf build/demo
	build/release/src/cli/verbatim synth build/demo --size tiny --form nvfp4 --seed 1
	build/release/src/cli/verbatim inspect build/demo
	build/release/src/cli/verbatim plan build/demo --ranks 1 --context 4096 --memory 1GiB

test: build
	ctest --preset release

lint:
	scripts/lint.sh

format:
	git ls-files '*.cc' '*.h' '*.cu' '*.cuh' | xargs clang-format -i

clean:
	rm -rf build
