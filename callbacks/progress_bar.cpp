#include <levin/callbacks/progress_bar.h>

#include <levin/core/base/sink_scope.h>
#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace levin {
namespace {

constexpr size_t kUsualColumns = 80;
constexpr const char* kValidation = "Validation";
constexpr const char* kTest = "Test";
constexpr const char* kPrediction = "Prediction";

void write_to_standard_error(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

size_t columns_of_standard_error() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsualColumns;
}

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool standard_error_is_terminal() { return isatty(STDERR_FILENO) == 1 && environment("TERM") != "dumb"; }

/// As the C library picks the character set.
bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string_view value = environment(name);
    if (value.empty()) continue;
    return value.find("UTF-8") != value.npos || value.find("utf8") != value.npos || value.find("utf-8") != value.npos;
  }
  return false;
}

/// Batches of all loaders; -1 where one is unsized.
int64_t total_of(const std::vector<int64_t>& batches) {
  int64_t total = 0;
  for (const int64_t count : batches) {
    if (count < 0) return -1;
    total += count;
  }
  return total;
}

std::chrono::steady_clock::duration seconds(double value) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(value));
}

}  // namespace

void ProgressBarOptions::describe(Schema<ProgressBarOptions>& schema) {
  using O = ProgressBarOptions;
  schema.field("refresh_rate", &O::refresh_rate, "redraws per second at most").above(0);
  schema.field("plain_interval", &O::plain_interval, "time between two lines within an epoch without a terminal (s)")
      .above(0);
  schema.field("leave", &O::leave, "keep the line of every epoch");
}

ProgressBar::ProgressBar(const Options& options)
    : options_(options), lines_(write_to_standard_error, columns_of_standard_error), own_terminal_(false) {}

ProgressBar::ProgressBar(const Options& options, LiveLines::Writer write, LiveLines::Width columns)
    : options_(options), lines_(std::move(write), std::move(columns)), own_terminal_(true) {}

ProgressBar::~ProgressBar() { close(); }

// ---- One bar.

void ProgressBar::Bar::begin(std::string description, int64_t total) {
  progress = {.description = std::move(description), .total = total};
  started = Clock::now();
  counted = false;
}

void ProgressBar::Bar::count(int64_t done) {
  if (!counted) progress.resumed = done - 1;
  counted = true;
  progress.done = done;
}

void ProgressBar::Bar::update_time(Clock::time_point now) {
  progress.seconds = std::chrono::duration<double>(now - started).count();
}

// ---- Opening and closing.

void ProgressBar::open(const Trainer& trainer) {
  if (open_ || !trainer.is_global_zero()) return;
  open_ = true;
  terminal_ = own_terminal_ || standard_error_is_terminal();
  blocks_ = locale_is_utf8();
  if (!terminal_) return;
  log_scope_ = std::make_unique<log::SinkScope>([this](const std::string& line, const log::SinkScope::Sink& sink) {
    if (sink)
      lines_.make_way([&] { sink(line); });
    else
      lines_.print(line);
  });
}

/// Leaves the terminal as it was found: what is drawn stays, with the cursor on a new line.
void ProgressBar::close() {
  if (!open_) return;
  open_ = false;
  log_scope_.reset();
  if (main_) main_->update_time(nested_ ? nested_since_ : Clock::now());
  nested_.reset();
  if (terminal_) lines_.erase();
  finish_main();
}

void ProgressBar::teardown(Trainer&, Module&, Stage) { close(); }

void ProgressBar::on_exception(Trainer&, Module&, const std::exception_ptr&) { close(); }

// ---- Drawing.

/// The check in every batch.
void ProgressBar::refresh(const Trainer& trainer, const Bar& counted) {
  // Other callbacks may print at the end of an epoch or evaluation: nothing must stand in their way.
  if (counted.complete() && terminal_) {
    lines_.erase();
    next_refresh_ = Clock::now();
    return;
  }
  if (Clock::now() >= next_refresh_) show(trainer);
}

/// A new bar appears at once, a plain line only where it takes long.
void ProgressBar::schedule_refresh(Clock::time_point begun) {
  next_refresh_ = terminal_ ? begun : begun + seconds(options_.plain_interval);
}

void ProgressBar::show(const Trainer& trainer) {
  const auto now = Clock::now();
  next_refresh_ = now + seconds(terminal_ ? 1 / options_.refresh_rate : options_.plain_interval);
  std::vector<std::string> lines;
  if (main_) {
    main_->update_time(nested_ ? nested_since_ : now);
    main_->progress.metrics = trainer.progress_bar_metrics(false);
  }
  if (nested_) nested_->update_time(now);
  for (const auto* bar : {&main_, &nested_}) {
    if (!*bar) continue;
    const Progress& progress = (*bar)->progress;
    if (terminal_)
      lines.push_back(render_progress(progress, lines_.usable_columns(), blocks_));
    else
      write_to_standard_error(render_progress(progress) + "\n");
  }
  if (terminal_) lines_.draw(std::move(lines));
}

/// At a boundary, where the metrics are there to be read.
void ProgressBar::complete_main(const Trainer& trainer) {
  if (!main_) return;
  main_->update_time(Clock::now());
  main_->progress.metrics = trainer.progress_bar_metrics();
  finish_main();
}

/// The main bar's line as it stands stays on the screen, and there is no main bar any more.
void ProgressBar::finish_main() {
  if (!main_) return;
  const Progress& progress = main_->progress;
  if (!terminal_) {
    write_to_standard_error(render_progress(progress) + "\n");
  } else {
    lines_.erase();
    if (options_.leave) lines_.print(render_progress(progress, lines_.usable_columns(), blocks_));
  }
  main_.reset();
}

void ProgressBar::begin_main(const Trainer& trainer, std::string description, int64_t total) {
  open(trainer);
  if (!open_) return;
  main_.emplace().begin(std::move(description), total);
  schedule_refresh(main_->started);
}

// ---- Training.

void ProgressBar::on_train_start(Trainer& trainer, Module&) { open(trainer); }

void ProgressBar::on_train_epoch_start(Trainer& trainer, Module&) { begin_epoch(trainer); }

void ProgressBar::begin_epoch(const Trainer& trainer) {
  begin_main(trainer, fmt::format("Epoch {}", trainer.current_epoch()), trainer.num_training_batches().value_or(-1));
}

void ProgressBar::on_train_batch_end(Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t batch_idx) {
  if (!main_) begin_epoch(trainer);  // resumed within an epoch
  if (!main_) return;
  main_->count(batch_idx + 1);
  refresh(trainer, *main_);
}

void ProgressBar::on_train_epoch_end(Trainer& trainer, Module&) { complete_main(trainer); }

void ProgressBar::on_train_end(Trainer&, Module&) { close(); }

// ---- Evaluation and prediction: a bar of its own, or a nested one within fit.

void ProgressBar::on_sanity_check_start(Trainer& trainer, Module&) { open(trainer); }

void ProgressBar::on_sanity_check_end(Trainer&, Module&) {
  if (terminal_) lines_.erase();
}

void ProgressBar::begin_evaluation(const Trainer& trainer, const std::string& description) {
  const int64_t total = total_of(trainer.num_evaluation_batches());
  if (trainer.stage() != Stage::kFit) return begin_main(trainer, description, total);
  open(trainer);
  if (!open_) return;
  nested_.emplace().begin(description, total);
  nested_since_ = nested_->started;
  if (!main_) schedule_refresh(nested_since_);
}

void ProgressBar::count_evaluation(const Trainer& trainer, const char* description, int64_t batch_idx, int64_t loader) {
  auto& bar = trainer.stage() == Stage::kFit ? nested_ : main_;
  if (!bar) begin_evaluation(trainer, description);  // resumed within a validation
  if (!bar) return;
  if (!bar->counted) {
    const std::vector<int64_t> batches = trainer.num_evaluation_batches();
    bar->progress.done = total_of({batches.begin(), batches.begin() + loader}) + batch_idx;
  }
  bar->count(bar->progress.done + 1);
  refresh(trainer, *bar);
}

void ProgressBar::end_evaluation(const Trainer& trainer) {
  complete_main(trainer);
  close();
}

void ProgressBar::on_validation_start(Trainer& trainer, Module&) {
  begin_evaluation(trainer, trainer.sanity_checking() ? "Sanity check" : kValidation);
}

void ProgressBar::on_validation_batch_end(Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t batch_idx,
                                          int64_t loader) {
  count_evaluation(trainer, kValidation, batch_idx, loader);
}

void ProgressBar::on_validation_end(Trainer& trainer, Module&) {
  if (!nested_) return end_evaluation(trainer);
  // The epoch's clock stood still, so that its rate is that of training.
  if (main_) main_->started += Clock::now() - nested_since_;
  nested_.reset();
  if (terminal_) lines_.erase();
}

void ProgressBar::on_test_start(Trainer& trainer, Module&) { begin_evaluation(trainer, kTest); }

void ProgressBar::on_test_batch_end(Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t batch_idx,
                                    int64_t loader) {
  count_evaluation(trainer, kTest, batch_idx, loader);
}

void ProgressBar::on_test_end(Trainer& trainer, Module&) { end_evaluation(trainer); }

void ProgressBar::on_predict_start(Trainer& trainer, Module&) { begin_evaluation(trainer, kPrediction); }

void ProgressBar::on_predict_batch_end(Trainer& trainer, Module&, const Batch&, const Batch&, int64_t batch_idx,
                                       int64_t loader) {
  count_evaluation(trainer, kPrediction, batch_idx, loader);
}

void ProgressBar::on_predict_end(Trainer& trainer, Module&) { end_evaluation(trainer); }

}  // namespace levin
