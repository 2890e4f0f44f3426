#include <levin/core/data/fetch_times.h>

#include <algorithm>

namespace levin::data {

namespace {

thread_local FetchTimes* t_times = nullptr;

}  // namespace

FetchTimes::FetchTimes() : outer_(std::exchange(t_times, this)) {}

FetchTimes::~FetchTimes() { t_times = outer_; }

void FetchTimes::add(std::string_view name, std::chrono::nanoseconds time) {
  const auto known = std::find_if(parts_.begin(), parts_.end(), [&](const Part& part) { return part.first == name; });
  if (known != parts_.end())
    known->second += time;
  else
    parts_.emplace_back(name, time);
}

FetchPart::FetchPart(std::string_view name) : times_(t_times), name_(name) {
  if (times_ != nullptr) begin_ = std::chrono::steady_clock::now();
}

FetchPart::~FetchPart() {
  if (times_ != nullptr) times_->add(name_, std::chrono::steady_clock::now() - begin_);
}

}  // namespace levin::data
