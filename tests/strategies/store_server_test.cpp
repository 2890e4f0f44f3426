#include <levin/strategies/comm/store_server.h>

#include <levin/core/base/error.h>
#include <levin/strategies/comm/c10d_error.h>
#include <levin/strategies/comm/job_secret.h>
#include <levin/strategies/comm/network.h>
#include <levin/strategies/comm/protected_store.h>
#include <levin/strategies/comm/rendezvous.h>
#include <levin/strategies/comm/store_protocol.h>
#include <tests/strategies/launcher_support.h>
#include <tests/strategies/run_ranks.h>
#include <tests/support/captured_log.h>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace levin {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::CapturedLog;
using testing::expect_contains;
using testing::message_of;
using testing::ScopedVariable;

constexpr const char* kSecret = "the secret of the job that is tested";
constexpr size_t kGreetingBytes = store_protocol::kGreeting.size() + store_protocol::kNonceBytes;

std::shared_ptr<StoreServer> serve(const StoreLimits& limits = {}, const std::string& secret = kSecret) {
  return std::make_shared<StoreServer>(listen_at("127.0.0.1", 0), secret, limits);
}

c10::intrusive_ptr<ProtectedStore> join_store(const StoreServer& server, const std::string& secret = kSecret) {
  auto store =
      ProtectedStore::connect({.host = "127.0.0.1", .port = server.port(), .secret = secret}, seconds(30), seconds(30));
  EXPECT_NE(store, nullptr);
  return store;
}

/// Somebody who connects and says what he likes.
class Stranger {
 public:
  explicit Stranger(int64_t port) : socket_(connect_to("127.0.0.1", port, seconds(30))) {
    EXPECT_TRUE(socket_.is_open());
  }
  void say(const std::string& bytes) const { ::send(socket_.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  /// Up to `size` bytes; less where the other side closed the connection, or said nothing for 30 s.
  std::string hear(size_t size) const {
    std::string bytes(size, '\0');
    size_t done = 0;
    pollfd readable{.fd = socket_.number(), .events = POLLIN, .revents = 0};
    while (done<size&& ::poll(&readable, 1, 30'000)> 0) {
      const ssize_t count = ::recv(socket_.number(), bytes.data() + done, size - done, 0);
      if (count <= 0) break;
      done += static_cast<size_t>(count);
    }
    bytes.resize(done);
    return bytes;
  }
  /// Whether the other side has ended the connection, waiting for it.
  bool is_cut_off() const {
    char byte = 0;
    pollfd readable{.fd = socket_.number(), .events = POLLIN, .revents = 0};
    return ::poll(&readable, 1, 30'000) > 0 && ::recv(socket_.number(), &byte, 1, 0) <= 0;
  }
  /// Hears the greeting and returns the server's nonce.
  std::string hear_nonce() const {
    const std::string greeting = hear(kGreetingBytes);
    EXPECT_TRUE(greeting.starts_with(store_protocol::kGreeting));
    return greeting.substr(store_protocol::kGreeting.size());
  }

 private:
  Descriptor socket_;
};

void expect_works(c10d::Store& store) {
  store.set("key", std::string("value"));
  EXPECT_EQ(store.get_to_str("key"), "value");
}

TEST(StoreServer, GivesStrangersNothingButANonce) {
  const CapturedLog log;
  const auto server = serve();
  const Stranger stranger(server->port());
  EXPECT_EQ(stranger.hear_nonce().size(), store_protocol::kNonceBytes);
  stranger.say(std::string(64, 'x'));
  EXPECT_EQ(stranger.hear(1000), store_protocol::kRefusal);
  EXPECT_TRUE(stranger.is_cut_off());
  EXPECT_EQ(server->turned_away(), 1);
  expect_contains(log.text(),
                  "to this job's store was turned away: what it answered is no proof of the secret; hint: "
                  "docs/security.md");
  EXPECT_EQ(log.text().find(kSecret), std::string::npos);
  expect_works(*join_store(*server));
  EXPECT_EQ(server->turned_away(), 1);
}

TEST(StoreServer, ReadsNoMoreOfAStrangerThanAProofsLength) {
  const auto server = serve();
  const Stranger stranger(server->port());
  // What c10d's store would take for a length, and a great deal of it.
  stranger.say(std::string(1 << 20, '\xff'));
  EXPECT_LE(stranger.hear(1000).size(), kGreetingBytes + store_protocol::kRefusal.size());
  const Stranger browser(server->port());
  browser.say("GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: a browser that has come here by mistake\r\n\r\n");
  EXPECT_LE(browser.hear(1000).size(), kGreetingBytes + store_protocol::kRefusal.size());
  expect_works(*join_store(*server));
  EXPECT_EQ(server->turned_away(), 2);
}

TEST(StoreServer, RefusesAnotherSecretAndNamesNeither) {
  const auto server = serve();
  const std::string message = message_of([&] { join_store(*server, "a secret of somebody else"); });
  expect_contains(message,
                  "[comm] the job's store at 127.0.0.1:" + std::to_string(server->port()) +
                      " has another secret than this process; hint: LEVIN_JOB_SECRET or LEVIN_JOB_SECRET_FILE");
  EXPECT_EQ(message.find("somebody else"), std::string::npos);
  expect_contains(message_of([&] { join_store(*server, ""); }), "than this process, which has none");
  expect_works(*join_store(*server));
}

TEST(StoreServer, TakesAnAnswerOnce) {
  const auto server = serve();
  const std::string nonce(store_protocol::kNonceBytes, 'n');
  std::string answer;
  {
    const Stranger rank(server->port());
    answer = nonce + store_protocol::client_proof(kSecret, rank.hear_nonce(), nonce);
    rank.say(answer);
    EXPECT_EQ(rank.hear(store_protocol::kProofBytes).size(), store_protocol::kProofBytes);
  }
  const Stranger listener(server->port());
  EXPECT_EQ(listener.hear_nonce().size(), store_protocol::kNonceBytes);
  listener.say(answer);
  EXPECT_EQ(listener.hear(1000), store_protocol::kRefusal);
  EXPECT_EQ(server->turned_away(), 1);
}

TEST(StoreServer, SaysAtOnceThatItLacksDescriptors) {
  Descriptor listener = listen_at("127.0.0.1", 0);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(listener.number()) + 4;
  ::setrlimit(RLIMIT_NOFILE, &few);
  const std::string message = message_of([&] { StoreServer(std::move(listener), kSecret); });
  ::setrlimit(RLIMIT_NOFILE, &before);
  expect_contains(message, "[comm] cannot serve the ranks' store: Too many open files; got ");
  expect_contains(message, "valid: 16, and two for each rank; hint: `ulimit -n` limits them");
}

TEST(StoreServer, CutsOffARankWhoseRequestIsTooLong) {
  const CapturedLog log;
  const auto server = serve();
  const std::string nonce(store_protocol::kNonceBytes, 'n');
  const Stranger rank(server->port());
  rank.say(nonce + store_protocol::client_proof(kSecret, rank.hear_nonce(), nonce));
  rank.hear(store_protocol::kProofBytes);
  rank.say(std::string(4, '\xff'));
  EXPECT_TRUE(rank.is_cut_off());
  expect_contains(log.text(),
                  "sent the job's store a request of 4294967295 bytes, and is cut off; valid: up to 16777216");
  expect_works(*join_store(*server));
}

TEST(StoreServer, CutsOffWhoProvesNothingInTime) {
  const auto server = serve({.proof_time = milliseconds(50)});
  const Stranger stranger(server->port());
  stranger.hear_nonce();
  EXPECT_TRUE(stranger.is_cut_off());
  EXPECT_EQ(server->turned_away(), 1);
}

TEST(StoreServer, IsReachedThroughAThousandConnectionsOfOthers) {
  constexpr size_t kConnections = 1000;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit wanted = before;
  wanted.rlim_cur = std::min<rlim_t>(before.rlim_max, 4096);
  ::setrlimit(RLIMIT_NOFILE, &wanted);
  {
    const CapturedLog log;
    const auto server = serve({.unproven = 32});
    const size_t descriptors = static_cast<size_t>(
        std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()));
    const auto early = join_store(*server);
    std::vector<std::unique_ptr<Stranger>> flood;
    for (size_t i = 0; i < kConnections; ++i) flood.push_back(std::make_unique<Stranger>(server->port()));
    expect_works(*join_store(*server));
    expect_works(*early);
    EXPECT_GE(server->turned_away(), static_cast<int64_t>(kConnections) - 32);
    const auto open = static_cast<size_t>(
        std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()));
    EXPECT_LE(open, descriptors + kConnections + 32 + 8);
    const std::string text = log.text();
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 4) << text;
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
}

/// Without the trace that c10's errors carry.
std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return c10d_message(error);
  }
  return "no refusal";
}

TEST(StoreServer, BoundsWhatItKeeps) {
  const auto server = serve({.keys = 2, .bytes = 100});
  const c10::intrusive_ptr<c10d::Store> store = join_store(*server);
  store->set("a", std::string("1"));
  store->set("b", std::string("2"));
  store->set("b", std::string("3"));
  expect_contains(refusal_of([&] { store->set("c", std::string("4")); }), "the store is full: 2 keys and 4 bytes");
  EXPECT_TRUE(store->deleteKey("a"));
  expect_contains(refusal_of([&] { store->set("c", std::string(100, 'x')); }), "the store is full");
  expect_contains(refusal_of([&] { store->set(std::string(70'000, 'k'), std::string("v")); }), "a key has 70000 bytes");
  expect_contains(refusal_of([&] { store->set("b", std::string(9 << 20, 'v')); }), "a value has 9437184 bytes");
  store->set("b", std::string("text"));
  expect_contains(refusal_of([&] { store->add("b", 1); }), "the key 'b' holds no number to add to");
  EXPECT_EQ(store->add("n", INT64_MAX), INT64_MAX);
  expect_contains(refusal_of([&] { store->add("n", 1); }), "a sum is out of the range of 64 bits");
}

TEST(ProtectedStore, DoesWhatC10dsStoresDo) {
  const auto server = serve();
  const auto store = join_store(*server);
  const std::vector<uint8_t> bytes = {0, 255, 10, 7};
  EXPECT_TRUE(store->hasExtendedApi());
  store->multiSet({"x", "y"}, {bytes, {}});
  EXPECT_EQ(store->multiGet({"x", "y"}), (std::vector<std::vector<uint8_t>>{bytes, {}}));
  store->append("x", {1});
  EXPECT_EQ(store->get("x").size(), 5u);
  c10d::Store& as_text = *store;
  EXPECT_EQ(as_text.compareSet("new", "", "first"), "first");
  EXPECT_EQ(as_text.compareSet("new", "other", "second"), "first");
  EXPECT_EQ(as_text.compareSet("new", "first", "second"), "second");
  EXPECT_EQ(as_text.compareSet("none", "expected", "second"), "expected");
  EXPECT_FALSE(store->check({"none"}));
  EXPECT_EQ(store->getNumKeys(), 3);
  auto keys = store->listKeys();
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(keys, (std::vector<std::string>{"new", "x", "y"}));
  EXPECT_TRUE(store->deleteKey("x"));
  EXPECT_FALSE(store->deleteKey("x"));
}

TEST(ProtectedStore, BelievesNoServerThatProvesNothing) {
  const Descriptor listener = listen_at("127.0.0.1", 0);
  auto pretender = std::async(std::launch::async, [&] {
    const Descriptor rank(::accept(listener.number(), nullptr, nullptr));
    const std::string greeting = std::string(store_protocol::kGreeting) + std::string(store_protocol::kNonceBytes, 'n');
    ::send(rank.number(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
    std::string heard(64, '\0');
    ::recv(rank.number(), heard.data(), heard.size(), MSG_WAITALL);
    const std::string proof(store_protocol::kProofBytes, 'p');
    ::send(rank.number(), proof.data(), proof.size(), MSG_NOSIGNAL);
    return heard;
  });
  const StoreAddress address{.host = "127.0.0.1", .port = bound_port(listener.number()), .secret = kSecret};
  expect_contains(message_of([&] { ProtectedStore::connect(address, seconds(30), seconds(30)); }),
                  "has another secret than this process");
  EXPECT_EQ(pretender.get().find(std::string(kSecret).substr(0, 8)), std::string::npos);
}

TEST(ProtectedStore, SaysThatSomethingElseAnswers) {
  const Descriptor listener = listen_at("127.0.0.1", 0);
  auto web_server = std::async(std::launch::async, [&] {
    const Descriptor rank(::accept(listener.number(), nullptr, nullptr));
    const std::string page = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
    ::send(rank.number(), page.data(), page.size(), MSG_NOSIGNAL);
  });
  const StoreAddress address{.host = "127.0.0.1", .port = bound_port(listener.number()), .secret = kSecret};
  expect_contains(message_of([&] { ProtectedStore::connect(address, seconds(30), seconds(30)); }),
                  "is no store of a job of this version of Levin; hint: MASTER_PORT");
  web_server.get();
}

// ---- Where the secret comes from.

class SecretFile {
 public:
  SecretFile(const std::string& text, mode_t mode) {
    path_ = ::testing::TempDir() + "levin_secret_" + std::to_string(::getpid());
    std::ofstream(path_) << text;
    ::chmod(path_.c_str(), mode);
  }
  ~SecretFile() { std::filesystem::remove(path_); }
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(JobSecret, IsReadFromAFileThatOnlyItsUserCanRead) {
  const ScopedVariable none(kJobSecretVariable, nullptr);
  {
    const SecretFile file(std::string(kSecret) + "\n", 0600);
    const ScopedVariable variable(kJobSecretFileVariable, file.path().c_str());
    EXPECT_EQ(job_secret(), kSecret);
    EXPECT_EQ(make_job_secret(), kSecret);
  }
  const SecretFile open(std::string(kSecret), 0640);
  const ScopedVariable variable(kJobSecretFileVariable, open.path().c_str());
  const std::string message = message_of([] { job_secret(); });
  expect_contains(message, "can be read or written by others; got mode 640; hint: chmod 600 ");
  EXPECT_EQ(message.find(kSecret), std::string::npos);
}

TEST(JobSecret, ThatIsNoneIsRefused) {
  const ScopedVariable none(kJobSecretVariable, nullptr);
  {
    const ScopedVariable short_one(kJobSecretVariable, "hush");
    const std::string message = message_of([] { job_secret(); });
    expect_contains(message, "the secret of the job in LEVIN_JOB_SECRET has 4 characters; valid: 16 to 4096");
    EXPECT_EQ(message.find("hush"), std::string::npos);
  }
  const ScopedVariable device(kJobSecretFileVariable, "/dev/zero");
  expect_contains(message_of([] { job_secret(); }), "(/dev/zero) is no regular file");
  const ScopedVariable missing(kJobSecretFileVariable, "/nowhere/at/all");
  expect_contains(message_of([] { job_secret(); }), "(/nowhere/at/all): No such file or directory");
}

// ---- Behind a launcher's store, which is c10d's.

struct Agent {
  Agent() {
    c10d::TCPStoreOptions options;
    options.port = 0;
    options.isServer = true;
    options.waitWorkers = false;
    store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }
  ClusterPlace place(int64_t rank) const {
    return {.rank = rank,
            .world_size = 2,
            .local_rank = rank,
            .local_world_size = 2,
            .main_port = store->getPort(),
            .external_store = true,
            .store_outlives_attempts = true,
            .run_id = "job"};
  }
  c10::intrusive_ptr<c10d::TCPStore> store;
};

TEST(RendezvousBehindAnAgent, GoesOnInAProtectedStoreWhereThereIsASecret) {
  const ScopedVariable secret(kJobSecretVariable, kSecret);
  const Agent agent;
  EXPECT_TRUE(is_served_by_rank_zero(agent.place(0)));
  std::vector<std::future<void>> ranks;
  for (const int64_t rank : {1, 0})
    ranks.push_back(std::async(std::launch::async, [&agent, rank] {
      const auto store = connect_store(agent.place(rank), seconds(60));
      store->set("from " + std::to_string(rank), std::string("hello"));
      EXPECT_EQ(store->get_to_str("from " + std::to_string(1 - rank)), "hello");
      store->add("through", 1);
      while (rank == 0 && store->add("through", 0) < 2) std::this_thread::sleep_for(milliseconds(1));
    }));
  for (auto& rank : ranks) rank.get();
  for (const std::string& key : agent.store->listKeys()) {
    EXPECT_EQ(key.find("from"), std::string::npos) << key;
    EXPECT_EQ(key.find("rendezvous"), std::string::npos) << key;
  }
}

TEST(RendezvousBehindAnAgent, BelievesNoAddressWithoutAProof) {
  const Agent agent;
  auto leader = std::async(std::launch::async, [&agent] {
    // A stranger in the place of rank 0 leads the attempt and gives an address of his own.
    c10d::Store& store = *agent.store;
    const std::string hello = store.get_to_str("job/attempt/hello/1");
    store.set("job/attempt/answer/" + hello, std::string("his"));
    store.set("job/his/store/host", std::string("127.0.0.1"));
    store.set("job/his/store/port", std::string("1"));
    store.set("job/his/store/proof", std::string(32, 'p'));
  });
  const ScopedVariable secret(kJobSecretVariable, kSecret);
  expect_contains(message_of([&] { connect_store(agent.place(1), seconds(60)); }),
                  "is not proven with this job's secret");
  leader.get();
}

}  // namespace
}  // namespace levin
