#include <levin/strategies/comm/rendezvous.h>

#include "../support/eventually.h"

#include <levin/core/base/error.h>
#include <levin/strategies/comm/c10d_store.h>
#include <levin/strategies/comm/network.h>
#include <levin/strategies/comm/process_group.h>
#include <levin/strategies/comm/watched_store.h>
#include <tests/strategies/run_ranks.h>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace levin {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::expect_contains;
using testing::message_of;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = ::testing::TempDir() + "levin_rendezvous_XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

ClusterPlace place_at(int64_t port, int64_t rank, int64_t world_size) {
  return {.rank = rank, .world_size = world_size, .main_address = "127.0.0.1", .main_port = port, .run_id = "job"};
}

// --- Where ranks meet ---

TEST(RendezvousTest, RankZeroServesTheOthers) {
  // Another process may take the port between the choice and its use: then another one is tried.
  for (int attempt = 0;; ++attempt) {
    const int64_t port = free_port();
    std::vector<std::future<void>> ranks;
    for (int64_t rank = 2; rank >= 0; --rank)
      ranks.push_back(std::async(std::launch::async, [port, rank] {
        const auto store = connect_store(place_at(port, rank, 3), seconds(60));
        store->set("from " + std::to_string(rank), std::string("hello"));
        for (int64_t other = 0; other < 3; ++other)
          EXPECT_EQ(store->get_to_str("from " + std::to_string(other)), "hello");
        // Rank 0 serves until all are through.
        store->add("through", 1);
        while (rank == 0 && store->add("through", 0) < 3) std::this_thread::sleep_for(milliseconds(1));
      }));
    bool taken = false;
    for (auto& rank : ranks) {
      try {
        rank.get();
      } catch (const Error& error) {
        taken = true;
        ASSERT_LT(attempt, 3) << error.what();
      }
    }
    if (!taken) break;
  }
}

TEST(RendezvousTest, JobsShareAnExternalStoreByTheirNames) {
  const ServedStore served = make_local_server_store(seconds(30));
  ASSERT_GT(served.port, 0);
  ClusterPlace first = place_at(served.port, 0, 1);
  first.external_store = true;
  first.run_id = "first";
  ClusterPlace second = first;
  second.run_id = "second";
  const auto of_first = connect_store(first, seconds(30));
  const auto of_second = connect_store(second, seconds(30));
  of_first->set("key", std::string("1"));
  EXPECT_FALSE(of_second->check({"key"}));
  EXPECT_TRUE(served.store->check({"first/key"}));
  // A rank may come again, as for a second call of the trainer.
  EXPECT_EQ(connect_store(first, seconds(30))->get_to_str("key"), "1");
}

TEST(RendezvousTest, OneRankNeedsNoAddress) {
  const ClusterPlace alone{.rank = 0, .world_size = 1, .main_address = ""};
  EXPECT_EQ(connect_store(alone, seconds(1))->add("counter", 2), 2);
}

TEST(RendezvousTest, PortInUse) {
  const ServedStore occupant = make_local_server_store(seconds(30));
  const std::string message = message_of([&] { connect_store(place_at(occupant.port, 0, 2), seconds(60)); });
  expect_contains(message, "[comm] port " + std::to_string(occupant.port) + " of this host is in use");
  expect_contains(message, "hint: MASTER_PORT=");
}

TEST(RendezvousTest, UnreachablePeer) {
  const int64_t port = free_port();
  const std::string message = message_of([&] { connect_store(place_at(port, 1, 2), milliseconds(1500)); });
  expect_contains(message, "[comm] rank 1 could not reach the rendezvous at 127.0.0.1:" + std::to_string(port) +
                               " within 1.5 s; hint: rank 0 serves it");

  ClusterPlace external = place_at(port, 1, 2);
  external.external_store = true;
  expect_contains(message_of([&] { connect_store(external, milliseconds(500)); }), "the launcher's agent serves it");
}

TEST(RendezvousTest, MissingRanksAreNamed) {
  std::vector<std::string> messages;
  // In a short time the others may not be there yet.
  EXPECT_TRUE(testing::with_time_enough([&](seconds time) {
    const ServedStore served = make_local_server_store(seconds(60));
    std::vector<std::future<std::string>> present;
    for (const int64_t rank : {0, 2}) {
      ClusterPlace place = place_at(served.port, rank, 4);
      place.external_store = true;
      present.push_back(
          std::async(std::launch::async, [place, time] { return message_of([&] { connect_store(place, time); }); }));
    }
    messages = {present[0].get(), present[1].get()};
    return messages[0].find(fmt::format("[comm] rank 0 waited {} s at 127.0.0.1:{} for all 4 ranks; missing: 1, 3; "
                                        "hint:",
                                        time.count(), served.port)) != std::string::npos &&
           messages[1].find(fmt::format("[comm] rank 2 waited {} s", time.count())) != std::string::npos;
  })) << messages[0]
      << "\n"
      << messages[1];
}

/// In vain as soon as somebody has said so.
struct News {
  std::atomic<bool> came{false};
  std::atomic<int64_t> asked{0};
  /// Returns once somebody waits who asks for news.
  void await_question() const {
    EXPECT_TRUE(testing::eventually([this, before = asked.load()] { return asked > before; }));
  }
  WaitingInVain in_vain() {
    return [this]() -> std::optional<RankFailure> {
      ++asked;
      if (!came) return std::nullopt;
      return RankFailure{.rank = 3, .message = "was ended by signal 9 (Killed)", .gone = true};
    };
  }
};

TEST(RendezvousTest, WhatOneRankLearnsEndsTheWaitingOfAll) {
  const ServedStore served = make_local_server_store(seconds(60));
  News news;
  std::vector<std::future<std::string>> present;
  for (const int64_t rank : {0, 1, 2}) {
    ClusterPlace place = place_at(served.port, rank, 4);
    place.external_store = true;
    present.push_back(std::async(std::launch::async, [&, place] {
      return message_of([&] { connect_store(place, seconds(60), place.rank == 0 ? news.in_vain() : WaitingInVain()); });
    }));
  }
  while (!served.store->check({"job/rendezvous/rank0", "job/rendezvous/rank1", "job/rendezvous/rank2"}))
    std::this_thread::sleep_for(milliseconds(1));
  news.came = true;
  for (auto& rank : present) EXPECT_EQ(rank.get(), "[ranks] rank 3 was ended by signal 9 (Killed)");
}

TEST(RendezvousTest, TheLaunchersWordEndsTheWaiting) {
  const ServedStore served = make_local_server_store(seconds(60));
  ClusterPlace place = place_at(served.port, 0, 2);
  place.external_store = true;
  place.run_id = "";
  auto waiting = std::async(std::launch::async, [&] { return message_of([&] { connect_store(place, seconds(60)); }); });
  call_off_rendezvous(served.store, {.rank = 1, .message = "no such file"});
  EXPECT_EQ(waiting.get(), "[ranks] rank 1 failed: no such file");
}

TEST(RendezvousTest, NobodyConnectsInVain) {
  News news;
  const ClusterPlace place = place_at(free_port(), 1, 2);
  auto waiting = std::async(std::launch::async,
                            [&] { return message_of([&] { connect_store(place, seconds(60), news.in_vain()); }); });
  news.await_question();
  news.came = true;
  EXPECT_EQ(waiting.get(), "[ranks] rank 3 was ended by signal 9 (Killed)");
}

TEST(RendezvousTest, WrongPlaces) {
  ClusterPlace place = place_at(0, 0, 2);
  expect_contains(message_of([&] { connect_store(place, seconds(1)); }),
                  "got 0; valid: 1 to 65535; hint: set MASTER_PORT");
  place = place_at(1234, 0, 2);
  place.main_address = "";
  expect_contains(message_of([&] { connect_store(place, seconds(1)); }), "hint: set MASTER_ADDR");
  expect_contains(message_of([&] { connect_store(place_at(1234, 2, 2), seconds(1)); }), "got rank 2 of 2");
  place.main_address = "no-such-host.invalid";
  expect_contains(message_of([&] { connect_store(place, milliseconds(300)); }),
                  "the host 'no-such-host.invalid' of the rendezvous has no address: ");
}

TEST(RendezvousTest, AddressesOfThisHost) {
  const int64_t port = free_port();
  EXPECT_GT(port, 0);
  EXPECT_LE(port, 65535);
  EXPECT_NE(interface_names().find("lo"), std::string::npos);
  // Whatever leads to the peer, others can reach it: never the loopback.
  for (const std::string peer : {"", "127.0.0.1", "no-such-host.invalid"})
    EXPECT_FALSE(host_address(peer).starts_with("127.")) << host_address(peer);
  EXPECT_NO_THROW(check_host_resolves("localhost", seconds(60)));
}

TEST(RendezvousTest, FileStoreNeedsItsFolder) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/store";
  {
    const auto first = make_file_store(path, 2, seconds(30));
    const auto second = make_file_store(path, 2, seconds(30));
    first->set("key", std::string("value"));
    EXPECT_EQ(second->get_to_str("key"), "value");
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  expect_contains(message_of([&] { make_file_store(folder.path() + "/none/store", 2, seconds(1)); }),
                  "there is no folder '" + folder.path() + "/none'");
}

// --- What every kind of store does ---

struct StoreUnderTest {
  std::shared_ptr<void> keep_alive;
  c10::intrusive_ptr<c10d::Store> store;
};

const std::map<std::string, std::function<StoreUnderTest()>>& store_makers() {
  static const std::map<std::string, std::function<StoreUnderTest()>> makers = {
      {"Tcp",
       [] {
         auto served = std::make_shared<ServedStore>(make_local_server_store(seconds(60)));
         ClusterPlace place = place_at(served->port, 0, 1);
         place.external_store = true;
         return StoreUnderTest{served, connect_store(place, seconds(60))};
       }},
      {"Watched",
       [] {
         return StoreUnderTest{nullptr,
                               make_watched_store(make_thread_store(seconds(60)), [] { return std::nullopt; })};
       }},
      {"Hash",
       [] {
         return StoreUnderTest{nullptr, make_thread_store(seconds(60))};
       }},
      {"File",
       [] {
         auto folder = std::make_shared<TemporaryFolder>();
         return StoreUnderTest{folder, make_file_store(folder->path() + "/store", 1, seconds(60))};
       }},
  };
  return makers;
}

class C10dStoreTest : public ::testing::TestWithParam<std::string> {};

TEST_P(C10dStoreTest, KeepsValues) {
  const StoreUnderTest made = store_makers().at(GetParam())();
  C10dStore store(made.store);
  EXPECT_FALSE(store.contains("key"));
  const std::string binary("\0\xff\n x", 5);
  store.set("key", binary);
  EXPECT_TRUE(store.contains("key"));
  EXPECT_EQ(store.get("key", seconds(60)), binary);
  store.set("key", "changed");
  EXPECT_EQ(store.get("key", milliseconds(0)), "changed");
  store.set("empty", "");
  EXPECT_EQ(store.get("empty", seconds(60)), "");
  EXPECT_EQ(store.add("counter", 5), 5);
  EXPECT_EQ(store.add("counter", -7), -2);
  EXPECT_EQ(store.get("counter", seconds(60)), "-2");
}

TEST_P(C10dStoreTest, GetWaitsForAnotherThread) {
  const StoreUnderTest made = store_makers().at(GetParam())();
  C10dStore store(made.store);
  const auto clone = store.clone();
  auto value = std::async(std::launch::async, [&] { return store.get("later", seconds(60)); });
  // The clone goes on while the original waits.
  for (int i = 0; i < 20; ++i) clone->add("beats", 1);
  EXPECT_EQ(clone->clone()->add("beats", 1), 21);
  clone->set("later", "here");
  EXPECT_EQ(value.get(), "here");
}

TEST_P(C10dStoreTest, GetEndsAfterItsTimeOut) {
  const StoreUnderTest made = store_makers().at(GetParam())();
  C10dStore store(made.store);
  EXPECT_EQ(message_of([&] { store.get("never", milliseconds(250)); }),
            "[comm] no rank set the key 'never' within 0.25 s");
  EXPECT_EQ(message_of([&] { store.get("never", milliseconds(0)); }), "[comm] no rank set the key 'never' within 0 s");
  store.set("still", "works");
  EXPECT_EQ(store.get("still", seconds(60)), "works");
}

std::vector<std::string> store_names() {
  std::vector<std::string> names;
  for (const auto& [name, maker] : store_makers()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Kinds, C10dStoreTest, ::testing::ValuesIn(store_names()),
                         [](const auto& info) { return info.param; });

TEST(WatchedStoreTest, WaitsEndOnceTheyAreInVain) {
  News news;
  const auto store = make_watched_store(make_thread_store(seconds(60)), news.in_vain());
  const auto expect_end = [&](const std::function<void(c10d::Store&)>& wait) {
    news.came = false;
    const auto clone = store->clone();
    auto waiting = std::async(std::launch::async, [&] { return message_of([&] { wait(*clone); }); });
    news.await_question();
    news.came = true;
    EXPECT_EQ(waiting.get(), "[ranks] rank 3 was ended by signal 9 (Killed)");
  };
  expect_end([](c10d::Store& own) { own.wait({"never"}); });
  expect_end([](c10d::Store& own) { own.wait({"never"}, c10d::Store::kNoTimeout); });
  expect_end([](c10d::Store& own) { own.get("never"); });
  expect_end([](c10d::Store& own) { own.multiGet({"never"}); });
  C10dStore wrapped(store);
  EXPECT_EQ(message_of([&] { wrapped.get("never", seconds(60)); }), "[ranks] rank 3 was ended by signal 9 (Killed)");
  wrapped.set("key", "value");  // what does not wait goes on
  EXPECT_TRUE(wrapped.contains("key"));
}

TEST(WatchedStoreTest, ABackendsGroupIsNotMadeInVain) {
  for (const char* backend : {"gloo", "shared_memory"}) {
    for (const int64_t rank : {0, 1}) {
      News news;
      const auto store = make_watched_store(make_thread_store(seconds(60)), news.in_vain());
      const ProcessGroupOptions options{.backend = backend, .rank = rank, .world_size = 2};
      auto waiting =
          std::async(std::launch::async, [&] { return message_of([&] { make_process_group(store, options); }); });
      news.await_question();
      news.came = true;
      expect_contains(waiting.get(), "rank 3 was ended by signal 9 (Killed)");
    }
  }
}

TEST(C10dStoreServerTest, EndOfTheServerIsAnError) {
  auto served = std::make_unique<ServedStore>(make_local_server_store(seconds(30)));
  ClusterPlace place = place_at(served->port, 0, 1);
  place.external_store = true;
  C10dStore store(connect_store(place, seconds(30)));
  store.set("key", "value");
  served.reset();
  // The first call may still be written to a connection that is closing.
  const std::string message = message_of([&] {
    for (int i = 0; i < 100; ++i) store.add("counter", 1);
  });
  expect_contains(message, "[comm] the store of the ranks failed to count at the key 'counter': ");
  expect_contains(message, "has ended or cannot be reached");
}

}  // namespace
}  // namespace levin
