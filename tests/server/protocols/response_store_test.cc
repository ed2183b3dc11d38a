#include "server/response_store.h"

#include <gtest/gtest.h>

namespace verbatim::server {
namespace {

StoredResponse response(const std::string& id, const std::string& owner, size_t bytes = 10) {
  return {id, owner, std::string(bytes, 'x'), "[]", "[]"};
}

TEST(ResponseStore, OwnersSeeTheirOwn) {
  ResponseStore store({});
  store.put(response("a", "one"));
  EXPECT_NE(store.find("a", "one"), nullptr);
  EXPECT_EQ(store.find("a", "two"), nullptr);
  EXPECT_EQ(store.find("a", ""), nullptr);
  EXPECT_FALSE(store.erase("a", "two"));
  EXPECT_TRUE(store.erase("a", "one"));
  EXPECT_FALSE(store.erase("a", "one"));
  EXPECT_EQ(store.count(), 0);
  EXPECT_EQ(store.bytes(), 0);
}

TEST(ResponseStore, NumberIsBounded) {
  ResponseStore store({.responses = 3});
  for (int i = 0; i < 10; ++i) store.put(response(std::to_string(i), ""));
  EXPECT_EQ(store.count(), 3);
  EXPECT_EQ(store.find("6", ""), nullptr);
  EXPECT_NE(store.find("7", ""), nullptr);
  ResponseStore none({.responses = 0});
  none.put(response("a", ""));
  EXPECT_EQ(none.count(), 0);
}

TEST(ResponseStore, BytesAreBounded) {
  ResponseStore store({.bytes = 1000});
  for (int i = 0; i < 10; ++i) {
    store.put(response(std::to_string(i), "", 300));
    EXPECT_LE(store.bytes(), 1000);
  }
  EXPECT_EQ(store.count(), 3);
  store.put(response("large", "", 2000));  // not kept, and nothing goes for it
  EXPECT_EQ(store.find("large", ""), nullptr);
  EXPECT_EQ(store.count(), 3);
  store.put(response("most", "", 900));
  EXPECT_EQ(store.count(), 1);
}

TEST(ResponseStore, AgeIsBounded) {
  ResponseStore store({.age_s = 60});
  const Clock::time_point start = Clock::now();
  store.put(response("a", ""), start);
  store.put(response("b", ""), start + std::chrono::seconds(30));
  EXPECT_NE(store.find("a", "", start + std::chrono::seconds(59)), nullptr);
  EXPECT_EQ(store.find("a", "", start + std::chrono::seconds(60)), nullptr);
  EXPECT_NE(store.find("b", "", start + std::chrono::seconds(60)), nullptr);
  EXPECT_FALSE(store.erase("b", "", start + std::chrono::seconds(90)));
  EXPECT_EQ(store.bytes(), 0);
}

}  // namespace
}  // namespace verbatim::server
