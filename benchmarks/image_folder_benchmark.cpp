// Processor time of an image from a JPEG file to a normalised batch: levin::data::ImageFolder, torchvision's
// ImageFolder with v2 transforms and torch's DataLoader (benchmarks/peers/torchvision_image_folder.py), and decoding
// and resizing alone in a loop. The same files and transforms: random_resized_crop to 224, random mirroring,
// normalisation, batches of
// 64. In turns, medians; processor time of all threads and processes, so that other load on the machine counts less.
//
//   image_folder_benchmark FOLDER 'PYTHON .../torchvision_image_folder.py' [REPETITIONS]

#include "measure.h"

#include <levin/core/base/host_memory.h>
#include <levin/core/data/image_folder.h>
#include <levin/core/data/images/image_file.h>
#include <levin/core/data/transforms/crops.h>

#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using levin::benchmarks::Clock;
using levin::benchmarks::median;
using levin::benchmarks::seconds_since;

struct Seconds {
  double processor = 0;
  double clock = 0;
};

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

template <class Function>
Seconds timed(const Function& function) {
  const double before = processor_seconds();
  const auto started = Clock::now();
  function();
  return {processor_seconds() - before, seconds_since(started)};
}

std::shared_ptr<levin::data::ImageFolder> folder_of(const std::string& root, int64_t workers) {
  using levin::Config;
  auto config = Config::parse(
      "{transforms: [{random_resized_crop: {size: 224}}, random_horizontal_flip, normalize], "
      "val_fraction: 0, index_folder: ''}",
      {});
  config.set("root", Config::scalar(root, true));
  config.set("num_workers", Config::scalar(std::to_string(workers)));
  auto data =
      levin::make<levin::data::ImageFolder>(levin::parse_options<levin::data::ImageFolderOptions>(config, "data"));
  data->setup(levin::Stage::kFit);
  return data;
}

void read(const levin::DataLoader& loader, int64_t epoch) {
  auto pass = loader.pass({.seed = 1, .epoch = epoch});
  while (pass.next()) {
  }
}

/// The least that there is to do: each file read, decoded, cropped and resized.
void decode_and_resize(const levin::data::ImageIndex& index) {
  const levin::data::RandomResizedCrop transform({.size = 224});
  for (size_t i = 0; i < index.files.size(); ++i) {
    levin::data::Generator generator(1, 0, static_cast<int64_t>(i));
    transform.transform(levin::data::read_image(index.path(static_cast<int64_t>(i))), generator);
  }
}

Seconds torchvision(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  Seconds seconds;
  if (pipe == nullptr || std::fscanf(pipe, "%lf %lf", &seconds.processor, &seconds.clock) != 2)
    throw std::runtime_error("this failed: " + command);
  pclose(pipe);
  return seconds;
}

/// Resident memory of this process, in MiB.
double resident_mib() {
  std::ifstream file("/proc/self/statm");
  int64_t whole = 0;
  int64_t resident = 0;
  file >> whole >> resident;
  return static_cast<double>(resident * sysconf(_SC_PAGESIZE)) / (1 << 20);
}

void print_memory(const levin::DataLoader& loader) {
  std::printf("resident memory after each of ten epochs with 2 workers, MiB:");
  for (int64_t epoch = 0; epoch < 10; ++epoch) {
    read(loader, epoch);
    std::printf(" %.0f", resident_mib());
  }
  std::printf("\n");
}

struct Row {
  std::string name;
  std::vector<double> processor;
  std::vector<double> clock;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) {
    std::fprintf(stderr, "usage: image_folder_benchmark FOLDER 'PYTHON torchvision_image_folder.py' [REPETITIONS]\n");
    return 2;
  }
  levin::keep_freed_memory();  // as fit does
  torch::set_num_threads(1);
  const std::string root = argv[1];
  const auto index = levin::data::index_images(root, "");
  const auto count = static_cast<double>(index.files.size());
  std::vector<Row> rows = {{"decode and resize alone", {}, {}},
                           {"levin, 1 worker", {}, {}},
                           {"levin, 2 workers", {}, {}},
                           {"torchvision, 1 worker", {}, {}},
                           {"torchvision, 2 workers", {}, {}}};
  std::vector<levin::DataLoader> loaders;
  for (const int64_t workers : {1, 2}) loaders.push_back(folder_of(root, workers)->train_dataloader());
  decode_and_resize(index);
  const int repetitions = argc == 4 ? std::atoi(argv[3]) : 7;
  for (int i = 0; i < repetitions; ++i) {
    std::vector<Seconds> seconds = {timed([&] { decode_and_resize(index); })};
    for (const auto& loader : loaders) seconds.push_back(timed([&] { read(loader, i); }));
    for (const int workers : {1, 2})
      seconds.push_back(torchvision(std::string(argv[2]) + " " + root + " " + std::to_string(workers)));
    for (size_t row = 0; row < rows.size(); ++row) {
      rows[row].processor.push_back(seconds[row].processor);
      rows[row].clock.push_back(seconds[row].clock);
    }
  }
  std::printf("%-26s %24s %16s\n", "median of repetitions", "images/s of processor", "images/s");
  for (const auto& row : rows)
    std::printf("%-26s %24.0f %16.0f\n", row.name.c_str(), count / median(row.processor), count / median(row.clock));
  const auto ratio = [&](size_t a, size_t b) { return median(rows[b].processor) / median(rows[a].processor); };
  const auto clock_ratio = [&](size_t a, size_t b) { return median(rows[b].clock) / median(rows[a].clock); };
  std::printf("ratio levin : decode and resize, 1 worker = %.2f of processor time\n", ratio(1, 0));
  std::printf("ratio levin : torchvision, 1 worker = %.2f of processor time, %.2f of the clock\n", ratio(1, 3),
              clock_ratio(1, 3));
  std::printf("ratio levin : torchvision, 2 workers = %.2f of processor time, %.2f of the clock\n", ratio(2, 4),
              clock_ratio(2, 4));
  print_memory(loaders[1]);
  return 0;
}
