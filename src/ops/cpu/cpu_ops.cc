#include "ops/cpu/cpu_ops.h"

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/thread_pool.h"
#include "ops/cpu/instruction_sets.h"

namespace verbatim::ops {

namespace cpu {

CpuOps::CpuOps(ThreadPool& pool, const Kernels& kernels) : pool_(pool), kernels_(kernels) {}

const char* CpuOps::name() const {
  const std::string_view isa = kernels_.name;
  return isa == "avx512" ? "cpu (avx512)" : isa == "avx2" ? "cpu (avx2)" : "cpu (plain)";
}

// calloc leaves large blocks to the system's zero pages, so that memory is taken as it is touched. The block's own
// address stands in front of what is handed out.
void* CpuOps::allocate(size_t bytes) {
  constexpr size_t kAlignment = 64;
  void* block = bytes > SIZE_MAX - 2 * kAlignment ? nullptr : std::calloc(bytes + 2 * kAlignment, 1);
  if (block == nullptr)
    fail(ErrorKind::kCapacity, "cpu memory", "{} bytes could not be allocated; free some or ask for less", bytes);
  const auto address = reinterpret_cast<uintptr_t>(block);
  auto* data = static_cast<char*>(block) + (kAlignment + (kAlignment - address % kAlignment) % kAlignment);
  std::memcpy(data - sizeof(void*), &block, sizeof(void*));
  return data;
}

void CpuOps::release(void* data) {
  if (data == nullptr) return;
  void* block = nullptr;
  std::memcpy(&block, static_cast<char*>(data) - sizeof(void*), sizeof(void*));
  std::free(block);
}

void CpuOps::copy_in(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memmove(to, from, bytes);
}

void CpuOps::copy_out(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memmove(to, from, bytes);
}

void CpuOps::copy(void* to, const void* from, size_t bytes) { copy_out(to, from, bytes); }

}  // namespace cpu

bool cpu_isa_available(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kBest:
    case CpuIsa::kPlain: return true;
    case CpuIsa::kAvx2: return cpu::avx2_is_available();
    case CpuIsa::kAvx512: return cpu::avx512_is_available();
  }
  return false;
}

std::unique_ptr<Ops> make_cpu_ops(ThreadPool& pool, CpuIsa isa) {
  if (!cpu_isa_available(isa))
    fail(ErrorKind::kUnsupported, "cpu", "this machine has no {}; expected one of its own instruction sets; use plain",
         isa == CpuIsa::kAvx2 ? "AVX2 with FMA and F16C" : "AVX-512 with F, BW, VL and DQ");
  if (isa == CpuIsa::kBest)
    isa = cpu_isa_available(CpuIsa::kAvx512) ? CpuIsa::kAvx512
          : cpu_isa_available(CpuIsa::kAvx2) ? CpuIsa::kAvx2
                                             : CpuIsa::kPlain;
  const cpu::Kernels& kernels = isa == CpuIsa::kAvx512 ? cpu::avx512_kernels()
                                : isa == CpuIsa::kAvx2 ? cpu::avx2_kernels()
                                                       : cpu::plain_kernels();
  return std::make_unique<cpu::CpuOps>(pool, kernels);
}

}  // namespace verbatim::ops
