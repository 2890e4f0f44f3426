#include <levin/core/comm/memory_store.h>

#include <levin/core/base/error.h>

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

namespace levin {
namespace {

using namespace std::chrono_literals;

TEST(MemoryStore, GivesBackWhatWasSet) {
  auto store = make_memory_store();
  EXPECT_FALSE(store->contains("a"));
  const std::string bytes("one\0two", 7);
  store->set("a", bytes);
  EXPECT_TRUE(store->contains("a"));
  EXPECT_EQ(store->get("a", 0ms), bytes);
  store->set("a", "");
  EXPECT_EQ(store->get("a", 0ms), "");
}

TEST(MemoryStore, ClonesShareTheContentAndOutliveTheFirst) {
  auto store = make_memory_store();
  auto clone = store->clone();
  store->set("a", "1");
  store.reset();
  EXPECT_EQ(clone->get("a", 0ms), "1");
  EXPECT_FALSE(make_memory_store()->contains("a"));
}

TEST(MemoryStore, WaitsForAKeyThatAnotherRankSets) {
  auto store = make_memory_store();
  for (const bool by_counter : {false, true}) {
    const std::string key = by_counter ? "counter" : "key";
    auto waiting = std::async(std::launch::async, [&, clone = store->clone()] { return clone->get(key, 240s); });
    EXPECT_EQ(waiting.wait_for(20ms), std::future_status::timeout);
    if (by_counter) {
      store->add(key, 7);
    } else {
      store->set(key, "7");
    }
    ASSERT_EQ(waiting.wait_for(240s), std::future_status::ready) << key;
    EXPECT_EQ(waiting.get(), "7");
  }
}

TEST(MemoryStore, SaysWhichKeyNobodySet) {
  try {
    make_memory_store()->get("absent", 5ms);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[comm] no rank set the key 'absent' within 5 ms");
  }
}

TEST(MemoryStore, CountsWithoutLosingAnything) {
  auto store = make_memory_store();
  EXPECT_EQ(store->add("down", -3), -3);
  store->set("up", "40");
  EXPECT_EQ(store->add("up", 2), 42);
  EXPECT_EQ(store->get("up", 0ms), "42");

  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([clone = store->clone()] {
      for (int k = 0; k < 1000; ++k) clone->add("sum", 1);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(store->add("sum", 0), 4000);
}

TEST(MemoryStore, RefusesToAddToWhatIsNoNumber) {
  auto store = make_memory_store();
  for (const char* value : {"", "red", "3 apples"}) {
    store->set("a", value);
    try {
      store->add("a", 1);
      FAIL() << "nothing was thrown for '" << value << "'";
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()),
                "[comm] cannot add to the key 'a'; got the value '" + std::string(value) + "'; valid: a whole number");
    }
    EXPECT_EQ(store->get("a", 0ms), value);
  }
}

}  // namespace
}  // namespace levin
