// Working memory of the calling thread, kept between calls.
#pragma once

#include <cstdint>
#include <new>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace verbatim::ops::cpu {

// `count` floats of one thread_local store, contents unspecified; valid until that store's next call on this thread.
// Throws Error(kCapacity). `Store` tells stores apart whose lives overlap.
template <class Store>
float* thread_scratch(int64_t count, std::string_view where) {
  static thread_local std::vector<float> floats;
  if (static_cast<int64_t>(floats.size()) < count) {
    try {
      floats.resize(static_cast<size_t>(count));
    } catch (const std::bad_alloc&) {
      fail(ErrorKind::kCapacity, where, "no memory for {} bytes of working space; free some, or feed shorter chunks",
           count * 4);
    }
  }
  return floats.data();
}

}  // namespace verbatim::ops::cpu
