// What a job of many ranks costs beside its model: ranks of one program on this machine that join, watch each other,
// agree on a stop, learn of a failure, exchange metrics and save a checkpoint together, without a model.
//
//   scale_benchmark [--ranks 16,64,256,1024] [--ranks-a-host 8] [--quiet-seconds 10]
//
// A host is a process, and each of its ranks has its own connections to the store and its own control plane, as the
// ranks of ddp have. docs/scale.md explains the lines.

#include "../tests/support/thread_collective.h"
#include "measure.h"

#include <levin/core/base/log.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/checkpoint/checkpoint_info.h>
#include <levin/core/comm/control_plane.h>
#include <levin/core/comm/rank_status.h>
#include <levin/core/metrics/collector.h>
#include <levin/strategies/comm/c10d_store.h>
#include <levin/strategies/comm/rendezvous.h>

#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace levin;
using benchmarks::Clock;
using benchmarks::seconds_since;
using std::chrono::milliseconds;

constexpr int64_t kMostRanks = 4096;
constexpr auto kTimeout = std::chrono::minutes(5);

enum class Phase : int { kJoin, kQuiet, kStop, kFail, kEnd };
enum class Fault { kException, kVanishedHost };

/// What all processes see.
struct Shared {
  std::atomic<Phase> phase{Phase::kJoin};
  std::atomic<int64_t> joined{0};
  std::atomic<int64_t> stopped{0};
  std::atomic<int64_t> informed{0};  ///< ranks that know of the failure
  std::atomic<int64_t> messages{0};  ///< to the store
  std::atomic<int64_t> lines{0};     ///< printed
};

/// Counts what c10d sends to the process that serves the store; what it answers is as much.
class CountingStore : public Store {
 public:
  CountingStore(std::unique_ptr<Store> store, std::atomic<int64_t>& messages)
      : store_(std::move(store)), messages_(messages) {}

  void set(const std::string& key, const std::string& value) override { counted(1).set(key, value); }
  std::string get(const std::string& key, milliseconds timeout) override {
    return counted(2).get(key, timeout);  // C10dStore waits for it, then reads it
  }
  int64_t add(const std::string& key, int64_t amount) override { return counted(1).add(key, amount); }
  bool contains(const std::string& key) override { return counted(1).contains(key); }
  std::unique_ptr<Store> clone() const override { return std::make_unique<CountingStore>(store_->clone(), messages_); }

 private:
  Store& counted(int64_t messages) {
    messages_.fetch_add(messages, std::memory_order_relaxed);
    return *store_;
  }

  std::unique_ptr<Store> store_;
  std::atomic<int64_t>& messages_;
};

struct Rank {
  RankStatus status;
  c10::intrusive_ptr<c10d::Store> store;
  std::unique_ptr<ControlPlane> control;
  bool is_stopped = false;
  bool is_informed = false;
};

/// Runs the ranks of one host, in a process of their own.
[[noreturn]] void run_host(Shared& shared, int64_t first, int64_t count, int64_t world_size, int64_t port,
                           Fault fault) {
  log::set_sink([&](const std::string& line) { shared.lines += 1 + std::count(line.begin(), line.end(), '\n'); });
  std::vector<Rank> ranks(static_cast<size_t>(count));
  const auto join = [&](int64_t i) {
    Rank& rank = ranks[static_cast<size_t>(i)];
    const ClusterPlace place{.rank = first + i,
                             .world_size = world_size,
                             .local_rank = i,
                             .local_world_size = count,
                             .node_rank = first / count,
                             .main_port = port,
                             .external_store = true};
    try {
      rank.store = connect_store(place, kTimeout);
      ControlPlaneOptions options{.rank = place.rank, .world_size = world_size, .prefix = "scale", .store_rank = -1};
      options.start_timeout = kTimeout;
      options.abort = [](const std::string&) {};
      options.give_up = [](const std::string&) {};
      rank.control = std::make_unique<ControlPlane>(
          std::make_unique<CountingStore>(C10dStore(rank.store).clone(), shared.messages), options, rank.status);
    } catch (const std::exception& error) {
      fmt::print(stderr, "rank {}: {}\n", place.rank, error.what());
      _exit(1);
    }
    ++shared.joined;
  };
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < count; ++i) threads.emplace_back(join, i);
  for (std::thread& thread : threads) thread.join();

  bool has_acted = false;
  for (int64_t batch = 0; shared.phase != Phase::kEnd; ++batch) {
    if (shared.phase == Phase::kStop && first == 0 && !has_acted) {
      ranks.front().control->request_stop("the benchmark asks for it");
      has_acted = true;
    }
    for (Rank& rank : ranks) {
      try {
        rank.control->throw_if_failed();
        if (!rank.is_stopped && rank.control->begin_batch(batch)) {
          rank.is_stopped = true;
          ++shared.stopped;
        }
      } catch (const std::exception&) {
        if (!rank.is_informed) ++shared.informed;
        rank.is_informed = true;
      }
    }
    if (shared.phase == Phase::kFail && fault == Fault::kException && first + count == world_size &&
        !ranks.back().is_informed)
      ranks.back().control->report_failure("the benchmark failed");
    std::this_thread::sleep_for(milliseconds(10));
  }
  _exit(0);
}

/// Processes that end with this one, whatever happens.
struct Hosts {
  std::vector<pid_t> processes;
  ~Hosts() {
    for (const pid_t process : processes) kill(process, SIGKILL);
    for (const pid_t process : processes) waitpid(process, nullptr, 0);
  }
};

void await(const std::atomic<int64_t>& count, int64_t wanted, const char* what) {
  const auto started = Clock::now();
  while (count < wanted) {
    if (Clock::now() - started > kTimeout)
      throw std::runtime_error(fmt::format("{} of {} ranks {} in 300 s", count.load(), wanted, what));
    std::this_thread::sleep_for(milliseconds(2));
  }
}

void run_job(int64_t world_size, int64_t ranks_a_host, double quiet_seconds, Fault fault) {
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no shared memory");
  Shared& shared = *new (memory) Shared;
  ReservedPort port;
  Hosts hosts;
  const auto started = Clock::now();
  for (int64_t first = 0; first < world_size; first += ranks_a_host) {
    const int64_t count = std::min(ranks_a_host, world_size - first);
    const pid_t process = fork();
    if (process < 0) throw std::runtime_error("no further process can be started");
    if (process == 0) run_host(shared, first, count, world_size, port.port(), fault);
    hosts.processes.push_back(process);
  }
  // The store's thread must not be there while processes are forked.
  std::optional<ServedStore> served = port.serve(kTimeout);
  await(shared.joined, world_size, "joined");
  const double join_seconds = seconds_since(started);

  shared.phase = Phase::kQuiet;
  std::this_thread::sleep_for(std::chrono::seconds(2));
  int64_t before = shared.messages;
  auto phase_start = Clock::now();
  std::this_thread::sleep_for(std::chrono::duration<double>(quiet_seconds));
  const double messages_a_second = static_cast<double>(shared.messages - before) / seconds_since(phase_start);

  double stop_seconds = 0;
  if (fault == Fault::kException) {
    phase_start = Clock::now();
    shared.phase = Phase::kStop;
    await(shared.stopped, world_size, "agreed to stop");
    stop_seconds = seconds_since(phase_start);
  }

  const int64_t lines_before = shared.lines;
  int64_t informed = world_size;
  phase_start = Clock::now();
  shared.phase = Phase::kFail;
  if (fault == Fault::kVanishedHost) {
    kill(hosts.processes.back(), SIGKILL);
    informed -= std::min(ranks_a_host, world_size);
  }
  await(shared.informed, informed, "knew of the failure");
  const double known_seconds = seconds_since(phase_start);
  const int64_t lines = shared.lines - lines_before;

  if (fault == Fault::kException)
    fmt::print(
        "{:>6} ranks: join {:.2f} s, {} connections, {:.0f} messages/s in a quiet job, stop agreed in {:.2f} s, "
        "exception known in {:.2f} s ({} lines)\n",
        world_size, join_seconds, 2 * world_size, messages_a_second, stop_seconds, known_seconds, lines);
  else
    fmt::print("{:>6} ranks: join {:.2f} s, vanished host known in {:.2f} s ({} lines)\n", world_size, join_seconds,
               known_seconds, lines);
  std::fflush(stdout);
  shared.phase = Phase::kEnd;
}

/// Bytes that the ranks of a job were given: rank 0, of the others the one with most, and all together.
class Received {
 public:
  void add(const testing::ThreadCollective& rank) {
    if (rank.rank() == 0)
      first_ = rank.received();
    else
      note_most(rank.received());
    all_ += rank.received();
  }
  std::string text() const {
    return fmt::format("rank 0 was given {:.1f} KiB, others {:.1f} at most, all together {:.2f} MiB",
                       static_cast<double>(first_) / 1024, static_cast<double>(most_) / 1024,
                       static_cast<double>(all_) / (1 << 20));
  }

 private:
  void note_most(int64_t bytes) {
    int64_t most = most_;
    while (bytes > most && !most_.compare_exchange_weak(most, bytes)) continue;
  }

  std::atomic<int64_t> first_{0};
  std::atomic<int64_t> most_{0};
  std::atomic<int64_t> all_{0};
};

/// What the ranks tell each other at the end of an epoch in which each has logged as many means.
void exchange_metrics(int64_t world_size) {
  constexpr int64_t kMetrics = 100;
  Received received;
  const auto started = Clock::now();
  testing::run_ranks(world_size, [&](testing::ThreadCollective& rank) {
    metrics::Collector collector;
    collector.begin({.batch_size = 8});
    for (int64_t i = 0; i < kMetrics; ++i) collector.log(fmt::format("mean_{}", i), 0.5, {.sync_dist = true});
    collector.synchronize_epoch(rank);
    received.add(rank);
  });
  fmt::print("{:>6} ranks: exchange of {} metrics in {:.2f} s, as threads; {}\n", world_size, kMetrics,
             seconds_since(started), received.text());
  std::fflush(stdout);
}

/// Ranks are threads here: what is measured is the files and what the ranks tell each other of them.
void save_checkpoint(int64_t world_size) {
  constexpr int64_t kElementsARank = 1024;
  const std::string folder = std::filesystem::temp_directory_path() / fmt::format("levin_scale_{}", getpid());
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/checkpoint";
  Received received;
  auto started = Clock::now();
  testing::run_ranks(world_size, [&](testing::ThreadCollective& rank) {
    State tree = State::map();
    tree["model"]["weight"] = TensorLeaf{.value = at::full({kElementsARank}, 1.0F),
                                         .placement = {.kind = Placement::Kind::kSharded,
                                                       .shard_name = "weight",
                                                       .offset = rank.rank() * kElementsARank,
                                                       .global_shape = {rank.world_size() * kElementsARank}}};
    write_sharded_checkpoint(path, tree, {.world_size = rank.world_size()}, rank);
    received.add(rank);
  });
  const double write_seconds = seconds_since(started);
  started = Clock::now();
  const State read = read_checkpoint(path);
  const double open_seconds = seconds_since(started);
  if (read.at("model").at("weight").as_tensor().numel() != world_size * kElementsARank)
    throw std::runtime_error("the checkpoint is not whole");
  fmt::print("{:>6} ranks: checkpoint written in {:.2f} s, read in {:.2f} s; {}\n", world_size, write_seconds,
             open_seconds, received.text());
  std::fflush(stdout);
  std::filesystem::remove_all(folder);
}

std::vector<int64_t> parse_counts(const std::string& text) {
  std::vector<int64_t> counts;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, ',');) {
    counts.push_back(std::stoll(word));
    if (counts.back() < 2 || counts.back() > kMostRanks)
      throw std::runtime_error(fmt::format("--ranks: got {}; valid: 2 to {}", word, kMostRanks));
  }
  return counts;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::vector<int64_t> counts = {16, 64, 256, 1024};
    int64_t ranks_a_host = 8;
    double quiet_seconds = 10;
    for (int i = 1; i + 1 < argc; i += 2) {
      const std::string option = argv[i];
      if (option == "--ranks")
        counts = parse_counts(argv[i + 1]);
      else if (option == "--ranks-a-host")
        ranks_a_host = std::max<int64_t>(1, std::stoll(argv[i + 1]));
      else if (option == "--quiet-seconds")
        quiet_seconds = std::stod(argv[i + 1]);
      else
        throw std::runtime_error("unknown option " + option + "; valid: --ranks, --ranks-a-host, --quiet-seconds");
    }
    rlimit files{};
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    // Jobs first: no thread may be left of anything when processes are forked.
    for (const int64_t count : counts)
      for (const Fault fault : {Fault::kException, Fault::kVanishedHost})
        run_job(count, ranks_a_host, fault == Fault::kException ? quiet_seconds : 0, fault);
    for (const int64_t count : counts) {
      exchange_metrics(count);
      save_checkpoint(count);
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "scale_benchmark: {}\n", error.what());
    return 1;
  }
  return 0;
}
