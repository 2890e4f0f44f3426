#include <levin/core/data/replay_buffer.h>

#include <levin/core/base/error.h>
#include <levin/core/base/mutex.h>
#include <levin/core/base/seed.h>
#include <levin/core/data/batch_state.h>
#include <levin/core/data/generator.h>
#include <levin/core/data/step_rows.h>
#include <levin/core/data/sum_tree.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

namespace levin::data {

namespace {

/// The stream of `sample`, which is none of an epoch.
constexpr int64_t kReplayStream = -2;

constexpr int64_t kMostWriters = 1 << 16;
constexpr double kMostPriority = 1e100;

const char* name_of_sampling(int64_t sampling) {
  switch (static_cast<ReplaySampling>(sampling)) {
    case ReplaySampling::kUniform:
      return "uniform";
    case ReplaySampling::kPrioritized:
      return "prioritized";
    case ReplaySampling::kEpisodes:
      return "episodes";
  }
  return "another";
}

constexpr std::array<const char*, 4> kReplayNames{"index", "discount", "weight", "mask"};

template <class T>
at::Tensor to_tensor(const std::vector<T>& values) {
  at::Tensor tensor = at::empty({std::ssize(values)}, c10::CppTypeToScalarType<T>::value);
  if (!values.empty()) std::memcpy(tensor.mutable_data_ptr(), values.data(), tensor.nbytes());
  return tensor;
}

template <class T>
std::vector<T> to_values(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().to(at::kCPU, c10::CppTypeToScalarType<T>::value).contiguous().reshape(-1);
  const T* const begin = values.template const_data_ptr<T>();
  return {begin, begin + values.numel()};
}

bool is_next(const std::string& name) { return name.starts_with("next_"); }

/// The values of a tensor [n] of steps; none where there is none. Throws levin::Error for other shapes.
template <class T>
std::vector<T> column_of(const Batch& steps, const char* name, int64_t count) {
  const at::Tensor* const tensor = steps.find(name);
  if (tensor == nullptr) return {};
  if (tensor->numel() != count)
    throw Error("data", fmt::format("'{}' of a step of a replay buffer is one number; got {} of {}; valid: [{}]", name,
                                    tensor->numel(), counted(count, "step"), count));
  return to_values<T>(*tensor);
}

Batch on_host(const Batch& steps) {
  Batch batch;
  for (const auto& [name, tensor] : steps.items()) batch.set(name, tensor.detach().to(at::kCPU).contiguous());
  return batch;
}

}  // namespace

void ReplayBufferOptions::describe(Schema<ReplayBufferOptions>& schema) {
  using O = ReplayBufferOptions;
  schema.field("capacity", &O::capacity, "steps; the oldest makes room for a new one").at_least(1);
  schema.field("sampling", &O::sampling, "steps (uniform), steps by their priorities, or whole episodes",
               {{"uniform", ReplaySampling::kUniform},
                {"prioritized", ReplaySampling::kPrioritized},
                {"episodes", ReplaySampling::kEpisodes}});
  schema.field("n_step", &O::n_step, "rewards summed up in front of the next observation's value").at_least(1);
  schema.field("discount", &O::discount, "of each further reward").at_least(0).at_most(1);
  schema.field("alpha", &O::alpha, "exponent of priorities; 0: uniform").at_least(0);
  schema.field("beta", &O::beta, "exponent of the weights of prioritized steps; 1: no bias").at_least(0).at_most(1);
  schema.field("epsilon", &O::epsilon, "added to the error that is a priority").above(0);
  schema.field("seed", &O::seed, "of what `sample` draws; none: that of seed_everything");
  schema.field("folder", &O::folder, "where the steps are; empty: memory");
  schema.field("epoch_size", &O::epoch_size, "steps that an epoch of fit draws; 0: as many as the capacity")
      .at_least(0);
}

/// Steps are numbered in the order of adding; step n is in row n % capacity. A step's successor is newer than itself,
/// so that it is there as long as the step is.
class ReplayBuffer::Core {
 public:
  explicit Core(const ReplayBufferOptions& options)
      : options_(options),
        beta_(options.beta),
        seed_(options.seed),
        rows_(options.capacity, options.folder),
        successor_(static_cast<size_t>(options.capacity), kNone),
        end_(static_cast<size_t>(options.capacity), kGoesOn) {
    if (options.sampling == ReplaySampling::kPrioritized) priorities_ = SumTree(options.capacity);
  }

  void add(const Batch& given, int64_t first_writer) {
    check_names(given, first_writer);
    const Batch steps = on_host(given);
    const int64_t count = steps.size();
    if (count == 0) return;
    const auto terminated = column_of<uint8_t>(steps, "terminated", count);
    const auto truncated = column_of<uint8_t>(steps, "truncated", count);
    column_of<double>(steps, "reward", count);

    const MutexLock lock(mutex_);
    if (!rows_.empty()) rows_.check(steps);
    const auto ends_with = [&](int64_t i) {
      const auto at = static_cast<size_t>(i);
      return !terminated.empty() && terminated[at] != 0 ? kTerminated
             : !truncated.empty() && truncated[at] != 0 ? kTruncated
                                                        : kGoesOn;
    };
    if (options_.sampling == ReplaySampling::kEpisodes) check_episodes(first_writer, count, ends_with);
    if (rows_.empty()) rows_.allocate(steps);
    writers_.resize(std::max(writers_.size(), static_cast<size_t>(first_writer + count)));
    for (int64_t i = 0; i < count; ++i) {
      Writer& writer = writers_[static_cast<size_t>(first_writer + i)];
      const int64_t number = added_++;
      const auto row = static_cast<size_t>(row_of(number));
      rows_.write(static_cast<int64_t>(row), steps, i);
      if (writer.last >= first()) successor_[static_cast<size_t>(row_of(writer.last))] = number;
      successor_[row] = kNone;
      end_[row] = ends_with(i);
      if (priorities_) priorities_->set(static_cast<int64_t>(row), highest_priority_);
      if (writer.begin == kNone) writer.begin = number;
      writer.last = number;
      ++writer.length;
      if (end_[row] == kGoesOn) continue;
      // One that was too long has lost its beginning.
      if (options_.sampling == ReplaySampling::kEpisodes && writer.begin >= first())
        note_episode({writer.begin, writer.length});
      writer = {};
    }
    while (!episodes_.empty() && episodes_.front().begin < first()) episodes_.pop_front();
  }

  int64_t num_steps() const {
    const MutexLock lock(mutex_);
    return held();
  }

  int64_t num_added() const {
    const MutexLock lock(mutex_);
    return added_;
  }

  int64_t num_episodes() const {
    const MutexLock lock(mutex_);
    return std::ssize(episodes_);
  }

  Batch sample(int64_t count) {
    if (count < 1) throw Error("data", fmt::format("a replay buffer was asked for {} steps; valid: at least 1", count));
    const MutexLock lock(mutex_);
    require_held(count);
    if (!seed_) seed_ = global_seed();
    Generator generator(*seed_, kReplayStream, draws_);
    std::vector<double> drawn(static_cast<size_t>(count));
    for (double& number : drawn) number = generator.uniform();
    Batch batch = draw(drawn);
    ++draws_;
    return batch;
  }

  Batch sample_by(std::span<const int64_t> indices, const Generator& generator) const {
    std::vector<double> drawn;
    for (const int64_t index : indices) drawn.push_back(generator.for_sample(index).uniform());
    const MutexLock lock(mutex_);
    return draw(drawn);
  }

  void update_priorities(const at::Tensor& index, const at::Tensor& error) {
    if (!index.defined() || !error.defined())
      throw Error("data",
                  "update_priorities of a replay buffer was given an undefined tensor; valid: 'index' of a batch, "
                  "and an error for each");
    if (!c10::isIntegralType(index.scalar_type(), /*includeBool=*/false))
      throw Error("data", fmt::format("the index of update_priorities is {}; valid: int64, 'index' of a batch",
                                      c10::toString(index.scalar_type())));
    const auto numbers = to_values<int64_t>(index);
    const auto errors = to_values<double>(error);
    if (numbers.size() != errors.size())
      throw Error("data",
                  fmt::format("each step has one priority; got {} steps and {} errors", numbers.size(), errors.size()));
    for (const double value : errors)
      if (!std::isfinite(value))
        throw Error("data", fmt::format("the error that is a step's priority is no number; got {}; valid: finite ones; "
                                        "hint: has training diverged?",
                                        value));
    const MutexLock lock(mutex_);
    if (!priorities_)
      throw Error("data", "a replay buffer without priorities was given some; valid: sampling: prioritized");
    for (const int64_t number : numbers)
      if (number < 0 || number >= added_)
        throw Error("data",
                    fmt::format("step {} was never added to the replay buffer; valid: 0 to {}, as in 'index' of a "
                                "batch",
                                number, added_ - 1));
    for (const double value : errors)
      if (const double priority = std::pow(std::abs(value) + options_.epsilon, options_.alpha);
          priority > kMostPriority)
        throw Error("data", fmt::format("the priority of a step is too large for a sum of all; got {} of the error {}; "
                                        "valid: up to {}; hint: a smaller alpha, or errors that are clipped",
                                        priority, value, kMostPriority));
    for (size_t i = 0; i < numbers.size(); ++i) {
      const double priority = std::pow(std::abs(errors[i]) + options_.epsilon, options_.alpha);
      highest_priority_ = std::max(highest_priority_, priority);
      if (numbers[i] >= first()) priorities_->set(row_of(numbers[i]), priority);
    }
  }

  void set_beta(double beta) {
    if (!(beta >= 0 && beta <= 1))
      throw Error("data", fmt::format("beta of a replay buffer is {}; valid: 0 to 1", beta));
    const MutexLock lock(mutex_);
    beta_ = beta;
  }

  int64_t epoch_size() const { return options_.epoch_size > 0 ? options_.epoch_size : options_.capacity; }

  State state_dict() const {
    const MutexLock lock(mutex_);
    State state = State::map();
    state["capacity"] = options_.capacity;
    state["sampling"] = static_cast<int64_t>(options_.sampling);
    state["added"] = added_;
    state["draws"] = draws_;
    state["beta"] = beta_;
    state["highest_priority"] = highest_priority_;
    if (seed_) state["seed"] = static_cast<int64_t>(*seed_);
    state["steps"] = to_state(rows_.copy(row_of(first()), held()));
    std::vector<int64_t> successors;
    std::vector<uint8_t> ends;
    std::vector<double> priorities;
    for (int64_t number = first(); number < added_; ++number) {
      const int64_t row = row_of(number);
      successors.push_back(successor_[static_cast<size_t>(row)]);
      ends.push_back(end_[static_cast<size_t>(row)]);
      if (priorities_) priorities.push_back(priorities_->get(row));
    }
    state["successors"] = to_tensor(successors);
    state["ends"] = to_tensor(ends);
    state["priorities"] = to_tensor(priorities);
    std::vector<int64_t> writers;
    for (const Writer& writer : writers_) writers.insert(writers.end(), {writer.begin, writer.last, writer.length});
    state["writers"] = to_tensor(writers);
    std::vector<int64_t> episodes;
    for (const Episode& episode : episodes_) episodes.insert(episodes.end(), {episode.begin, episode.length});
    state["episodes"] = to_tensor(episodes);
    return state;
  }

  void load_state_dict(const State& state) {
    if (!state.is_map() || state.find("capacity") == nullptr || state.find("successors") == nullptr)
      throw Error("checkpoint",
                  "what is to be loaded is no state of a replay buffer; valid: what its state_dict() gave");
    if (const int64_t capacity = state.at("capacity").as_int(); capacity != options_.capacity)
      throw Error("checkpoint", fmt::format("a replay buffer was saved with a capacity of {}; got {}; valid: the same",
                                            capacity, options_.capacity));
    if (state.at("sampling").as_int() != static_cast<int64_t>(options_.sampling))
      throw Error("checkpoint", fmt::format("a replay buffer was saved with sampling {}; got {}; valid: the same",
                                            name_of_sampling(state.at("sampling").as_int()),
                                            name_of_sampling(static_cast<int64_t>(options_.sampling))));
    // All of it is looked at before anything is taken.
    const int64_t added = state.at("added").as_int();
    const int64_t draws = state.at("draws").as_int();
    const double beta = state.at("beta").as_double();
    const double highest_priority = state.at("highest_priority").as_double();
    const int64_t held_then = std::min(added, options_.capacity);
    const auto successors = to_values<int64_t>(state.at("successors").as_tensor());
    const auto ends = to_values<uint8_t>(state.at("ends").as_tensor());
    const auto priorities = to_values<double>(state.at("priorities").as_tensor());
    const auto writers = to_values<int64_t>(state.at("writers").as_tensor());
    const auto episodes = to_values<int64_t>(state.at("episodes").as_tensor());
    const auto require = [](bool holds, const char* what) {
      if (!holds)
        throw Error("checkpoint",
                    fmt::format("the state of a replay buffer contradicts itself: {}; hint: it is damaged, "
                                "or was not written by state_dict()",
                                what));
    };
    require(added >= 0 && draws >= 0 && beta >= 0 && beta <= 1 && std::isfinite(highest_priority), "its counters");
    require(std::ssize(successors) == held_then && std::ssize(ends) == held_then &&
                (options_.sampling != ReplaySampling::kPrioritized || std::ssize(priorities) == held_then),
            "places for another number of steps");
    const auto is_number = [&](int64_t number) { return number >= kNone && number < added; };
    require(std::ranges::all_of(successors, is_number), "a step behind the last one");
    require(std::ranges::all_of(priorities, [](double priority) { return priority >= 0 && std::isfinite(priority); }),
            "a priority that is no number");
    require(writers.size() % 3 == 0 && episodes.size() % 2 == 0, "writers or episodes cut short");
    for (size_t i = 0; i < writers.size(); i += 3)
      require(is_number(writers[i]) && is_number(writers[i + 1]) && writers[i + 2] >= 0,
              "a writer behind the last step");
    for (size_t i = 0; i < episodes.size(); i += 2)
      require(episodes[i] >= added - held_then && episodes[i + 1] > 0 && episodes[i + 1] <= held_then &&
                  episodes[i] + episodes[i + 1] <= added,
              "an episode outside of the steps");
    StepRows rows(options_.capacity, options_.folder);
    rows.restore(state.at("steps"), row_of(added - held_then), held_then);
    require(held_then == 0 || !rows.empty(), "no steps");
    const MutexLock lock(mutex_);
    added_ = added;
    draws_ = draws;
    beta_ = beta;
    highest_priority_ = highest_priority;
    if (const State* const seed = state.find("seed")) seed_ = static_cast<uint64_t>(seed->as_int());
    rows_ = std::move(rows);
    if (priorities_) priorities_ = SumTree(options_.capacity);
    for (size_t i = 0; i < successors.size(); ++i) {
      const int64_t row = row_of(first() + static_cast<int64_t>(i));
      successor_[static_cast<size_t>(row)] = successors[i];
      end_[static_cast<size_t>(row)] = ends[i];
      if (priorities_) priorities_->set(row, priorities[i]);
    }
    writers_.clear();
    for (size_t i = 0; i < writers.size(); i += 3) writers_.push_back({writers[i], writers[i + 1], writers[i + 2]});
    episodes_.clear();
    for (size_t i = 0; i < episodes.size(); i += 2) episodes_.push_back({episodes[i], episodes[i + 1]});
  }

 private:
  static constexpr int64_t kNone = -1;
  static constexpr uint8_t kGoesOn = 0;
  static constexpr uint8_t kTerminated = 1;
  static constexpr uint8_t kTruncated = 2;

  /// The episode under way of a writer.
  struct Writer {
    int64_t begin = kNone;
    int64_t last = kNone;
    int64_t length = 0;
  };
  struct Episode {
    int64_t begin = 0;
    int64_t length = 0;
  };
  /// Steps of one writer that are drawn as one.
  struct Window {
    int64_t first_row = 0;
    int64_t last_row = 0;
    double reward = 0;
    double discount = 1;
  };

  int64_t held() const LEVIN_REQUIRES(mutex_) { return std::min(added_, options_.capacity); }
  int64_t first() const LEVIN_REQUIRES(mutex_) { return added_ - held(); }
  int64_t row_of(int64_t number) const { return number % options_.capacity; }

  void check_names(const Batch& steps, int64_t first_writer) const {
    if (steps.items().empty())
      throw Error("data", "a replay buffer was given steps without tensors; valid: at least one tensor");
    if (!steps.text_items().empty())
      throw Error("data",
                  fmt::format("a replay buffer keeps tensors; got the texts '{}'", steps.text_items()[0].first));
    if (first_writer < 0)
      throw Error("data", fmt::format("writer {} of a replay buffer; valid: at least 0", first_writer));
    const int64_t count = steps.size();
    if (first_writer > kMostWriters - count)
      throw Error("data",
                  fmt::format("a replay buffer has at most {} writers; got steps of the writers {} to {}; hint: "
                              "add() takes the steps of one moment, one of each writer",
                              kMostWriters, first_writer, first_writer + (count - 1)));
    for (const auto& [name, tensor] : steps.items()) {
      if (tensor.defined() && (tensor.layout() != at::kStrided || tensor.is_meta()))
        throw Error("data",
                    fmt::format("'{}' of the steps of a replay buffer is sparse or without values; valid: a dense "
                                "tensor",
                                name));
      if (std::ranges::find(kReplayNames, name) != kReplayNames.end())
        throw Error("data",
                    fmt::format("'{}' is what a replay buffer puts into its batches; valid: another name", name));
      if (!tensor.defined() || tensor.dim() == 0 || tensor.size(0) != count)
        throw Error(
            "data",
            fmt::format("'{}' of the steps of a replay buffer needs a first dimension that counts them; "
                        "got {}; valid: [{}, ...]",
                        name,
                        tensor.defined() ? fmt::format("[{}]", fmt::join(tensor.sizes(), ", ")) : std::string("none"),
                        count));
    }
    const bool sums = options_.n_step > 1 && options_.sampling != ReplaySampling::kEpisodes;
    if (sums && steps.find("reward") == nullptr)
      throw Error("data",
                  fmt::format("n_step {} of a replay buffer sums up rewards; got steps without 'reward'; valid: "
                              "'reward', 'terminated', 'truncated' [n]",
                              options_.n_step));
    const bool ends = steps.find("terminated") != nullptr || steps.find("truncated") != nullptr;
    if (options_.sampling == ReplaySampling::kEpisodes && !ends)
      throw Error("data",
                  "a replay buffer that draws episodes needs their ends; got steps without 'terminated' and "
                  "'truncated'; valid: one of them, or both, [n]");
  }

  /// Of these writers, before a step of each is added.
  template <class EndsWith>
  void check_episodes(int64_t first_writer, int64_t count, const EndsWith& ends_with) const LEVIN_REQUIRES(mutex_) {
    if (count > options_.capacity)
      throw Error("data", fmt::format("{} were added at once to a replay buffer; valid: at most {}, its capacity",
                                      counted(count, "step"), options_.capacity));
    for (int64_t i = first_writer; i < std::min(first_writer + count, std::ssize(writers_)); ++i) {
      const Writer& writer = writers_[static_cast<size_t>(i)];
      if (writer.begin == kNone || writer.begin >= added_ + count - options_.capacity) continue;
      if (ends_with(i - first_writer) != kGoesOn) continue;  // it is over, and is left out
      throw Error("data",
                  fmt::format("an episode is longer than the replay buffer; got {} of writer {}, and {} in all "
                              "since its first; valid: at most {}, the capacity; hint: a larger capacity, or a step "
                              "with 'truncated', which ends the episode and leaves it out",
                              counted(writer.length + 1, "step"), i, added_ + count - writer.begin, options_.capacity));
    }
  }

  /// Keeps episodes in the order of their beginnings.
  void note_episode(const Episode& episode) LEVIN_REQUIRES(mutex_) {
    const auto place = std::ranges::upper_bound(episodes_, episode.begin, {}, &Episode::begin);
    episodes_.insert(place, episode);
  }

  void require_held(int64_t count) const LEVIN_REQUIRES(mutex_) {
    const bool of_episodes = options_.sampling == ReplaySampling::kEpisodes;
    const int64_t has = of_episodes ? std::ssize(episodes_) : held();
    if (count > has)
      throw Error("data", fmt::format("a replay buffer was asked for more than it has; got {} of {}; valid: at most as "
                                      "many; hint: let its writers fill it before training begins",
                                      count, counted(has, of_episodes ? "whole episode" : "step")));
  }

  /// `drawn`: in [0, 1), one for each.
  Batch draw(std::span<const double> drawn) const LEVIN_REQUIRES(mutex_) {
    const int64_t count = std::ssize(drawn);
    require_held(count);
    if (options_.sampling == ReplaySampling::kEpisodes) return episode_batch(drawn);
    const int64_t has = held();

    std::vector<int64_t> numbers;
    std::vector<double> weights;
    for (int64_t i = 0; i < count; ++i) {
      const double at = drawn[static_cast<size_t>(i)];
      if (!priorities_) {
        numbers.push_back(first() + std::min(static_cast<int64_t>(at * static_cast<double>(has)), has - 1));
        continue;
      }
      // One from each of `count` equal parts of the sum, as in the paper's appendix B.2.1.
      const double total = priorities_->total();
      const int64_t row = priorities_->find((static_cast<double>(i) + at) / static_cast<double>(count) * total);
      numbers.push_back(first() + (row - row_of(first()) + options_.capacity) % options_.capacity);
      weights.push_back(std::pow(static_cast<double>(has) * priorities_->get(row) / total, -beta_));
    }
    Batch batch = step_batch(numbers);
    if (priorities_) {
      const double highest = *std::ranges::max_element(weights);
      std::vector<float> scaled;
      for (const double weight : weights) scaled.push_back(static_cast<float>(weight / highest));
      batch.set("weight", to_tensor(scaled));
    }
    return batch;
  }

  Batch step_batch(const std::vector<int64_t>& numbers) const LEVIN_REQUIRES(mutex_) {
    const auto& columns = rows_.columns();
    const auto reward =
        static_cast<size_t>(std::ranges::find(columns, "reward", &Batch::Item::first) - columns.begin());
    const bool has_reward = reward < columns.size();
    std::vector<int64_t> first_rows;
    std::vector<int64_t> last_rows;
    std::vector<double> rewards;
    std::vector<double> discounts;
    for (const int64_t number : numbers) {
      const Window window = window_at(number, has_reward ? &columns[reward].second : nullptr);
      first_rows.push_back(window.first_row);
      last_rows.push_back(window.last_row);
      rewards.push_back(window.reward);
      discounts.push_back(window.discount);
    }
    Batch batch;
    for (size_t column = 0; column < columns.size(); ++column) {
      const auto& [name, rows] = columns[column];
      if (column == reward && options_.n_step > 1) {
        // A discounted sum of whole numbers is none.
        const auto type = rows.is_floating_point() ? rows.scalar_type() : at::kFloat;
        batch.set(name, to_tensor(rewards).to(type).reshape(reward_sizes(rows, std::ssize(numbers))));
        continue;
      }
      const bool is_of_last = is_next(name) || name == "terminated" || name == "truncated";
      batch.set(name, rows_.gather(column, is_of_last ? last_rows : first_rows));
    }
    batch.set("index", to_tensor(numbers));
    if (has_reward) batch.set("discount", to_tensor(discounts).to(at::kFloat));
    return batch;
  }

  static std::vector<int64_t> reward_sizes(const at::Tensor& rows, int64_t count) {
    std::vector<int64_t> sizes = rows.sizes().vec();
    sizes[0] = count;
    return sizes;
  }

  /// `reward`: nullptr where steps have none. Ends with the episode, and with the newest step of its writer.
  Window window_at(int64_t number, const at::Tensor* reward) const LEVIN_REQUIRES(mutex_) {
    Window window{.first_row = row_of(number), .last_row = row_of(number)};
    for (int64_t i = 0; i < options_.n_step; ++i) {
      const int64_t row = row_of(number);
      window.last_row = row;
      if (reward != nullptr && options_.n_step > 1) window.reward += window.discount * number_at(*reward, row);
      window.discount *= options_.discount;
      const uint8_t end = end_[static_cast<size_t>(row)];
      if (end == kTerminated) window.discount = 0;
      number = successor_[static_cast<size_t>(row)];
      if (end != kGoesOn || number == kNone) break;
    }
    return window;
  }

  static double number_at(const at::Tensor& rows, int64_t row) {
    if (rows.scalar_type() == at::kFloat) return static_cast<double>(rows.const_data_ptr<float>()[row]);
    if (rows.scalar_type() == at::kDouble) return rows.const_data_ptr<double>()[row];
    return rows.reshape(-1)[row].item<double>();
  }

  Batch episode_batch(std::span<const double> drawn) const LEVIN_REQUIRES(mutex_) {
    std::vector<Episode> chosen;
    int64_t longest = 0;
    for (const double at : drawn) {
      const auto place = static_cast<size_t>(at * static_cast<double>(episodes_.size()));
      chosen.push_back(episodes_[std::min(place, episodes_.size() - 1)]);
      longest = std::max(longest, chosen.back().length);
    }
    const auto& columns = rows_.columns();
    const int64_t count = std::ssize(chosen);
    Batch batch;
    for (const auto& [name, rows] : columns) {
      std::vector<int64_t> sizes{count, longest};
      sizes.insert(sizes.end(), rows.sizes().begin() + 1, rows.sizes().end());
      batch.set(name, at::zeros(sizes, rows.options()));
    }
    at::Tensor mask = at::zeros({count, longest}, at::kBool);
    std::vector<int64_t> numbers;
    for (int64_t i = 0; i < count; ++i) {
      int64_t number = chosen[static_cast<size_t>(i)].begin;
      numbers.push_back(number);
      for (int64_t step = 0; step < chosen[static_cast<size_t>(i)].length; ++step) {
        const int64_t row = row_of(number);
        for (size_t column = 0; column < columns.size(); ++column) {
          const at::Tensor& target = batch.items()[column].second;
          const size_t bytes = target.nbytes() / static_cast<size_t>(count * longest);
          rows_.read(column, row,
                     static_cast<char*>(target.mutable_data_ptr()) + static_cast<size_t>(i * longest + step) * bytes);
        }
        mask.mutable_data_ptr<bool>()[i * longest + step] = true;
        number = successor_[static_cast<size_t>(row)];
      }
    }
    batch.set("index", to_tensor(numbers));
    batch.set("mask", std::move(mask));
    return batch;
  }

  const ReplayBufferOptions options_;
  mutable Mutex mutex_;
  double beta_ LEVIN_GUARDED_BY(mutex_);
  std::optional<uint64_t> seed_ LEVIN_GUARDED_BY(mutex_);
  int64_t added_ LEVIN_GUARDED_BY(mutex_) = 0;
  int64_t draws_ LEVIN_GUARDED_BY(mutex_) = 0;
  double highest_priority_ LEVIN_GUARDED_BY(mutex_) = 1;
  StepRows rows_ LEVIN_GUARDED_BY(mutex_);
  std::vector<int64_t> successor_ LEVIN_GUARDED_BY(mutex_);  ///< by row: the number of its writer's next step
  std::vector<uint8_t> end_ LEVIN_GUARDED_BY(mutex_);        ///< by row: how the episode ends with it
  std::optional<SumTree> priorities_ LEVIN_GUARDED_BY(mutex_);
  std::vector<Writer> writers_ LEVIN_GUARDED_BY(mutex_);
  std::deque<Episode> episodes_ LEVIN_GUARDED_BY(mutex_);  ///< whole ones, in the order of their beginnings
};

std::unique_ptr<ReplayBuffer::Core> ReplayBuffer::make_core(const ReplayBufferOptions& options) {
  schema_of<ReplayBufferOptions>().validate(options, "replay buffer");
  // Successor and end of each step, and twice a number of the tree of priorities.
  const auto refuse = [&] {
    return ConfigError(
        fmt::format("replay buffer.capacity: there is no memory for the places of {} steps, {} bytes each "
                    "beside their tensors; hint: a smaller capacity",
                    options.capacity, options.sampling == ReplaySampling::kPrioritized ? 25 : 9));
  };
  try {
    return std::make_unique<Core>(options);
  } catch (const std::bad_alloc&) {
    throw refuse();
  } catch (const std::length_error&) {
    throw refuse();
  }
}

ReplayBuffer::ReplayBuffer(const ReplayBufferOptions& options) : core_(make_core(options)) {}
ReplayBuffer::~ReplayBuffer() = default;

void ReplayBuffer::add(const Batch& steps, int64_t first_writer) { core_->add(steps, first_writer); }
int64_t ReplayBuffer::num_steps() const { return core_->num_steps(); }
int64_t ReplayBuffer::num_added() const { return core_->num_added(); }
int64_t ReplayBuffer::num_episodes() const { return core_->num_episodes(); }
Batch ReplayBuffer::sample(int64_t count) { return core_->sample(count); }
void ReplayBuffer::update_priorities(const at::Tensor& index, const at::Tensor& error) {
  core_->update_priorities(index, error);
}
void ReplayBuffer::set_beta(double beta) { core_->set_beta(beta); }

int64_t ReplayBuffer::size() const { return core_->epoch_size(); }
Batch ReplayBuffer::get_batch(std::span<const int64_t> indices, Generator& generator) const {
  return core_->sample_by(indices, generator);
}

State ReplayBuffer::state_dict() const { return core_->state_dict(); }
void ReplayBuffer::load_state_dict(const State& state) { core_->load_state_dict(state); }

}  // namespace levin::data
