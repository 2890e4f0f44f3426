#include <levin/loggers/tensorboard_logger.h>

#include <levin/core/base/image_bytes.h>
#include <levin/core/base/png.h>
#include <levin/loggers/hyperparameter_summary.h>
#include <levin/loggers/logger_place.h>

#include <algorithm>
#include <cstddef>

namespace levin {
namespace {

/// What is kept in memory while the disk takes nothing.
constexpr size_t kMostEventBytes = 8 << 20;
constexpr size_t kEnoughEventBytes = 1 << 16;

}  // namespace

void TensorBoardLoggerOptions::describe(Schema<TensorBoardLoggerOptions>& schema) {
  describe_folder(schema);
  schema.field("log_graph", &TensorBoardLoggerOptions::log_graph,
               "log the model's graph, traced with the first training batch");
  describe_prefix(schema);
  schema
      .field("flush_seconds", &TensorBoardLoggerOptions::flush_seconds,
             "longest time of events in memory before writing (s)")
      .at_least(0);
}

TensorBoardLogger::TensorBoardLogger(const Options& options) : options_(options) {}

TensorBoardLogger::~TensorBoardLogger() { close(); }

void TensorBoardLogger::start(const RunInfo& run) {
  close();
  guard_.reset();
  writer_.emplace(run.directory);
  last_step_ = -1;
  last_write_ = std::chrono::steady_clock::now();
}

EventFileWriter* TensorBoardLogger::writer() {
  if (!writer_) return nullptr;
  if (writer_->pending_size() < kMostEventBytes) return &*writer_;
  ++lost_events_;
  write_when_due();
  return nullptr;
}

void TensorBoardLogger::log_metrics(std::span<const MetricValue> values, int64_t step, int64_t epoch) {
  last_step_ = std::max(last_step_, step);
  EventFileWriter* out = writer();
  if (out == nullptr) return;
  out->add_scalars(values, epoch, step);
  write_when_due();
}

void TensorBoardLogger::log_hyperparameters(const Config& hyperparameters) {
  EventFileWriter* out = writer();
  if (out == nullptr) return;
  out->add_text("hyperparameters", tensorboard::hyperparameter_table(hyperparameters), 0);
  out->add_hyperparameters(tensorboard::kSessionStartTag, tensorboard::session_start(hyperparameters));
  has_hyperparameters_ = true;
  write_when_due();
}

void TensorBoardLogger::log_text(const std::string& name, const std::string& text, int64_t step) {
  EventFileWriter* out = writer();
  if (out == nullptr) return;
  out->add_text(name, text, step);
  write_when_due();
}

void TensorBoardLogger::log_histogram(const std::string& name, std::span<const double> values, int64_t step) {
  EventFileWriter* out = writer();
  if (out == nullptr) return;
  out->add_histogram(name, values, step);
  write_when_due();
}

void TensorBoardLogger::log_image(const std::string& name, const at::Tensor& image, int64_t step) {
  EventFileWriter* out = writer();
  if (out == nullptr) return;
  const at::Tensor bytes = image_bytes(image);
  out->add_image(name, {bytes.size(1), bytes.size(2), bytes.size(0), encode_png(bytes)}, step);
  write_when_due();
}

void TensorBoardLogger::log_graph(const std::string& graph_def) {
  EventFileWriter* out = writer();
  if (out == nullptr) return;
  out->add_graph(graph_def);
  write_when_due();
}

void TensorBoardLogger::write_when_due() {
  const auto now = std::chrono::steady_clock::now();
  const double waited = std::chrono::duration<double>(now - last_write_).count();
  if (writer_->pending_size() < kEnoughEventBytes && waited < options_.flush_seconds) return;
  if (guard_.run(false, [this] { writer_->flush(); })) last_write_ = now;
}

void TensorBoardLogger::flush() {
  if (writer_) guard_.run(true, [this] { writer_->flush(); });
}

void TensorBoardLogger::finish(TrainerStatus status) {
  if (writer_ && has_hyperparameters_)
    writer_->add_hyperparameters(tensorboard::kSessionEndTag, tensorboard::session_end(status));
  close();
}

State TensorBoardLogger::state_dict() const {
  if (!writer_) return {};
  State state = State::map();
  state["last_step"] = last_step_;
  return state;
}

void TensorBoardLogger::load_state_dict(const State& state) {
  EventFileWriter* out = writer();
  if (out == nullptr || state.is_null()) return;  // what begins anew logs the same steps
  last_step_ = state.at("last_step").as_int();
  // Hyper-parameters have step 0.
  out->add_restart(std::max<int64_t>(last_step_, 0) + 1);
}

void TensorBoardLogger::close() {
  if (!writer_) return;
  guard_.run(true, [this] { writer_->close(); });
  guard_.report_lost(lost_events_ + writer_->pending_events(), "events");
  writer_.reset();
  has_hyperparameters_ = false;
  lost_events_ = 0;
}

}  // namespace levin
