// Page ids with counts of who holds them: sequences and the prefix tree.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace verbatim::state {

class PagePool {
 public:
  explicit PagePool(int64_t pages);

  // A free page, held once; nullopt if there is none.
  std::optional<int32_t> take();
  void hold(int32_t page);     // once more
  void release(int32_t page);  // once less; free at zero
  int32_t holders(int32_t page) const { return holders_[static_cast<size_t>(page)]; }

  int64_t free() const { return static_cast<int64_t>(free_.size()); }
  int64_t total() const { return static_cast<int64_t>(holders_.size()); }

 private:
  std::vector<int32_t> holders_;
  std::vector<int32_t> free_;  // a stack; the last freed is taken first
};

}  // namespace verbatim::state
