#pragma once

#include <levin/core/base/file_system.h>
#include <levin/core/interfaces/logger.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace levin {

/// An image as an event holds it.
struct EncodedImage {
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;  ///< 1 grey, 3 RGB, 4 RGBA
  std::string png;
};

/// Writes TensorBoard's event files: `events.out.tfevents.<seconds>.<host>.<pid>.<n>` in one folder, TFRecord records
/// (length, masked CRC-32C of it, data, masked CRC-32C of it) that hold tensorflow.Event messages.
///
/// The add functions put events into memory; flush() writes them and throws levin::Error when it cannot. What it could
/// not write stays in memory, and the next flush() begins a further file with it, because readers stop at a torn
/// record. (What had arrived before the fault is then there twice, which readers take for one point.)
class EventFileWriter {
 public:
  explicit EventFileWriter(std::string directory);

  /// Adds one event for all values and, unless a value has that name, a scalar "epoch".
  void add_scalars(std::span<const MetricValue> values, int64_t epoch, int64_t step);
  /// Adds a text that is shown as Markdown.
  void add_text(std::string_view name, std::string_view text, int64_t step);
  /// Adds the histogram of the values; nothing when none is finite.
  void add_histogram(std::string_view name, std::span<const double> values, int64_t step);
  void add_image(std::string_view name, const EncodedImage& image, int64_t step);
  /// Adds an event of the hparams plug-in. `content`: an HParamsPluginData message.
  void add_hyperparameters(std::string_view tag, std::string_view content);

  /// Says that what an earlier file has of this step and later ones is logged again: readers leave it out.
  void add_restart(int64_t step);
  /// Adds the graph of a model. `graph_def`: a serialised GraphDef.
  void add_graph(std::string_view graph_def);

  /// Bytes waiting in memory.
  size_t pending_size() const { return pending_.size(); }
  int64_t pending_events() const { return pending_events_; }
  void flush();
  /// Flushes and closes the file.
  void close();

 private:
  void append_event(int64_t step, const std::string& summary);
  void open();

  const std::string directory_;
  std::string path_;  ///< of the newest file
  std::unique_ptr<WritableFile> file_;
  std::string pending_;  ///< whole records
  int64_t pending_events_ = 0;
  // Kept only for their memory.
  std::string summary_;
  std::string event_;
};

}  // namespace levin
