#include "state/pages.h"

#include "base/error.h"

namespace verbatim::state {

PagePool::PagePool(int64_t pages) : holders_(static_cast<size_t>(pages), 0) {
  free_.reserve(static_cast<size_t>(pages));
  for (int64_t page = pages - 1; page >= 0; --page) free_.push_back(static_cast<int32_t>(page));
}

std::optional<int32_t> PagePool::take() {
  if (free_.empty()) return std::nullopt;
  const int32_t page = free_.back();
  free_.pop_back();
  holders_[static_cast<size_t>(page)] = 1;
  return page;
}

void PagePool::hold(int32_t page) { ++holders_[static_cast<size_t>(page)]; }

void PagePool::release(int32_t page) {
  int32_t& holders = holders_[static_cast<size_t>(page)];
  if (holders < 1) fail(ErrorKind::kUsage, "pages", "page {} is released but held by none", page);
  if (--holders == 0) free_.push_back(page);
}

}  // namespace verbatim::state
