#include <levin/core/data/skipped_examples.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/base/out_of_memory.h>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace levin::data {

namespace {

constexpr size_t kMostNamed = 5;

}  // namespace

std::optional<std::string> reason_of_failure(const std::function<void()>& read) {
  try {
    read();
    return std::nullopt;
  } catch (const ConfigError&) {
    throw;
  } catch (const InternalError&) {
    throw;
  } catch (const c10::Error& error) {
    if (is_out_of_memory(std::current_exception())) throw;
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    if (is_out_of_memory(std::current_exception())) throw;
    return error.what();
  }
}

std::vector<int64_t> SkippedExamples::replaced(std::span<const int64_t> indices) const {
  std::vector<int64_t> replaced(indices.begin(), indices.end());
  const MutexLock lock(mutex_);
  if (reasons_.empty()) return replaced;
  for (int64_t& index : replaced) {
    const int64_t most = std::min(size_, kMostInARow);
    int64_t tried = 0;
    auto failed = reasons_.find(index);
    for (; failed != reasons_.end(); failed = reasons_.find(index)) {
      if (++tried == most)
        throw Error("data", fmt::format("none of {} examples one after the other could be read; the last one, {}: {}",
                                        most, index, failed->second));
      index = (index + 1) % size_;
    }
  }
  return replaced;
}

bool SkippedExamples::note_unreadable(const Dataset& dataset, std::span<const int64_t> indices,
                                      const Generator& generator) {
  bool found = false;
  for (const int64_t index : indices) {
    const auto reason = reason_of_failure([&] {
      Generator of_sample = generator.for_sample(index);
      dataset.get(index, of_sample);
    });
    if (!reason) continue;
    found = true;
    const MutexLock lock(mutex_);
    reasons_.emplace(index, *reason);
  }
  return found;
}

void SkippedExamples::note(const std::string& place, const std::string& reason) {
  const MutexLock lock(mutex_);
  of_streams_.insert(fmt::format("{}: {}", place, reason));
}

void SkippedExamples::report() {
  std::vector<std::string> lines;
  size_t count = 0;
  {
    const MutexLock lock(mutex_);
    count = reasons_.size() + of_streams_.size();
    if (std::exchange(reported_, count) == count) return;
    for (const auto& [index, reason] : reasons_)
      if (lines.size() < kMostNamed) lines.push_back(fmt::format("example {}: {}", index, reason));
    for (const std::string& line : of_streams_)
      if (lines.size() < kMostNamed) lines.push_back(line);
  }
  if (count > lines.size()) lines.push_back(fmt::format("and {} more", count - lines.size()));
  const std::string all = size_ < 0 ? counted(static_cast<int64_t>(count), "example")
                                    : fmt::format("{} of {}", count, counted(size_, "example"));
  log::warning(fmt::format("epoch {}: {} could not be read; others took their place:\n  {}", epoch_, all,
                           fmt::join(lines, "\n  ")));
}

}  // namespace levin::data
