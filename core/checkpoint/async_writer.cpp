#include <levin/core/checkpoint/async_writer.h>

#include <levin/core/base/log.h>
#include <levin/core/checkpoint/checkpoint_writer.h>
#include <levin/core/checkpoint/host_copy.h>

#include <signal.h>

#include <chrono>
#include <exception>
#include <utility>

namespace levin {
namespace {

/// Signals are for the thread that trains, which knows how to end a step.
void block_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

}  // namespace

AsyncCheckpointWriter::AsyncCheckpointWriter(std::unique_ptr<SaveChannel> channel) : channel_(std::move(channel)) {}

AsyncCheckpointWriter::~AsyncCheckpointWriter() {
  try {
    wait();
  } catch (const std::exception& error) {
    log::warning(error.what());
  }
}

void AsyncCheckpointWriter::save(const std::string& path, const State& tree, const CheckpointInfo& info,
                                 std::function<void()> after) {
  wait();
  saving_ =
      std::async(std::launch::async, [this, path, info, after = std::move(after), copy = host_copy(tree)]() mutable {
        block_signals();
        const State snapshot = std::move(copy);  // gone when it is written, not when somebody asks for the outcome
        write_through(*channel_, path, snapshot, info);
        if (after) after();
      });
}

void AsyncCheckpointWriter::wait() {
  if (saving_.valid()) saving_.get();
}

bool AsyncCheckpointWriter::is_saving() const {
  return saving_.valid() && saving_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

}  // namespace levin
