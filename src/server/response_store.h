// Responses kept for later requests (/v1/responses/ID, previous_response_id), bounded in number, bytes and age.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "server/http.h"

namespace verbatim::server {

struct StoredResponse {
  std::string id;
  std::string owner;         // name of the key it was made with; another key's requests do not find it
  std::string body;          // the response, as JSON
  std::string input;         // its own input items, a JSON array
  std::string conversation;  // the items of all turns up to it, its output included, a JSON array

  int64_t bytes() const {
    return std::ssize(id) + std::ssize(owner) + std::ssize(body) + std::ssize(input) + std::ssize(conversation);
  }
};

struct ResponseStoreLimits {
  int64_t responses = 4096;
  int64_t bytes = 128 << 20;
  int64_t age_s = 24 * 3600;
};

// The oldest go first. May be used from any thread.
class ResponseStore {
 public:
  explicit ResponseStore(ResponseStoreLimits limits) : limits_(limits) {}

  // One that is larger than all may be is not kept.
  void put(StoredResponse response, Clock::time_point now = Clock::now());
  // Null if there is none, it is too old, or another's.
  std::shared_ptr<const StoredResponse> find(const std::string& id, const std::string& owner,
                                             Clock::time_point now = Clock::now());
  // False if find would give null.
  bool erase(const std::string& id, const std::string& owner, Clock::time_point now = Clock::now());
  int64_t count() const;
  int64_t bytes() const;

 private:
  struct Entry {
    std::shared_ptr<const StoredResponse> response;
    Clock::time_point stored;
  };
  using Entries = std::list<Entry>;  // oldest first
  void drop_old(Clock::time_point now);
  void remove(Entries::iterator entry);
  Entries::iterator lookup(const std::string& id, const std::string& owner, Clock::time_point now);

  const ResponseStoreLimits limits_;
  mutable std::mutex mutex_;
  Entries entries_;
  std::unordered_map<std::string, Entries::iterator> by_id_;
  int64_t bytes_ = 0;
};

}  // namespace verbatim::server
