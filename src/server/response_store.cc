#include "server/response_store.h"

#include <utility>

namespace verbatim::server {

void ResponseStore::remove(Entries::iterator entry) {
  bytes_ -= entry->response->bytes();
  by_id_.erase(entry->response->id);
  entries_.erase(entry);
}

void ResponseStore::drop_old(Clock::time_point now) {
  while (!entries_.empty() && now - entries_.front().stored >= std::chrono::seconds(limits_.age_s))
    remove(entries_.begin());
}

ResponseStore::Entries::iterator ResponseStore::lookup(const std::string& id, const std::string& owner,
                                                       Clock::time_point now) {
  drop_old(now);
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->response->owner != owner) return entries_.end();
  return found->second;
}

void ResponseStore::put(StoredResponse response, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  drop_old(now);
  const int64_t bytes = response.bytes();
  if (limits_.responses < 1 || bytes > limits_.bytes) return;
  while (!entries_.empty() && (std::ssize(entries_) >= limits_.responses || bytes_ + bytes > limits_.bytes))
    remove(entries_.begin());
  entries_.push_back({std::make_shared<const StoredResponse>(std::move(response)), now});
  by_id_[entries_.back().response->id] = std::prev(entries_.end());
  bytes_ += bytes;
}

std::shared_ptr<const StoredResponse> ResponseStore::find(const std::string& id, const std::string& owner,
                                                          Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  const auto entry = lookup(id, owner, now);
  return entry == entries_.end() ? nullptr : entry->response;
}

bool ResponseStore::erase(const std::string& id, const std::string& owner, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  const auto entry = lookup(id, owner, now);
  if (entry == entries_.end()) return false;
  remove(entry);
  return true;
}

int64_t ResponseStore::count() const {
  const std::lock_guard lock(mutex_);
  return std::ssize(entries_);
}

int64_t ResponseStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace verbatim::server
