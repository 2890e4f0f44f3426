// Readers against what they cannot be faster than: tar shards of samples of 100 KB against reading the files from end
// to end, and a CSV file of 1,000,000 rows of 20 columns against the parsing library alone. In turns, medians, on the
// same files in one process; what is read is in the page cache, which favours the comparison.
//
//   reader_benchmark FOLDER [REPETITIONS]
//
// Where FOLDER has table.parquet, the same table as benchmarks/peers/pyarrow_table.py writes it, that is read as well.

#include "measure.h"

#include <levin/core/data/csv.h>
#include <levin/core/data/generator.h>
#include <levin/core/data/tables/csv_parser.h>
#include <levin/core/data/tables/read_table.h>
#include <levin/core/data/tar_shards.h>

#include <csv.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using levin::benchmarks::Clock;
using levin::benchmarks::median;
using levin::benchmarks::seconds_since;

constexpr int64_t kShards = 8;
constexpr int64_t kSamples = 1000;  // of a shard
constexpr size_t kSampleBytes = 100'000;
constexpr int64_t kRows = 1'000'000;
constexpr int64_t kColumns = 20;

void write_shards(const std::string& folder) {
  fs::create_directories(folder);
  const std::string content(kSampleBytes, 'x');
  for (int64_t shard = 0; shard < kShards; ++shard) {
    const std::string path = fmt::format("{}/{}.tar", folder, shard);
    if (fs::exists(path)) continue;
    std::ofstream file(path, std::ios::binary);
    for (int64_t i = 0; i < kSamples; ++i) {
      std::string header(512, '\0');
      const auto put = [&](size_t place, const std::string& text) { header.replace(place, text.size(), text); };
      put(0, fmt::format("{:06}.bin", i));
      put(124, fmt::format("{:011o}", content.size()));
      put(148, "        ");
      put(156, "0");
      uint64_t sum = 0;
      for (const char byte : header) sum += static_cast<unsigned char>(byte);
      put(148, fmt::format("{:06o}", sum));
      header[154] = '\0';
      file << header << content << std::string((512 - kSampleBytes % 512) % 512, '\0');
    }
    file << std::string(1024, '\0');
  }
}

/// Half of the columns numbers, a quarter whole numbers, a quarter categories.
void write_table(const std::string& path) {
  if (fs::exists(path)) return;
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) throw std::runtime_error("cannot write " + path);
  std::string row;
  for (int64_t column = 0; column < kColumns; ++column) row += fmt::format("{}c{}", column > 0 ? "," : "", column);
  row += '\n';
  levin::data::Generator generator(1, 0);
  for (int64_t i = 0; i < kRows; ++i) {
    std::fwrite(row.data(), 1, row.size(), file);
    row.clear();
    for (int64_t column = 0; column < kColumns; ++column) {
      if (column > 0) row += ',';
      if (column % 4 == 3)
        row += fmt::format("group {}", generator.below(50));
      else if (column % 4 == 2)
        row += fmt::to_string(generator.below(100'000));
      else
        row += fmt::format("{:.6f}", generator.uniform());
    }
    row += '\n';
  }
  std::fwrite(row.data(), 1, row.size(), file);
  std::fclose(file);
}

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

template <class Function>
double timed(const Function& function, bool by_clock = false) {
  const double before = processor_seconds();
  const auto started = Clock::now();
  function();
  return by_clock ? seconds_since(started) : processor_seconds() - before;
}

/// Reads files from end to end into one buffer, which is as large as a batch: so that the bytes come to memory, too.
void read_files(const std::string& folder) {
  std::vector<char> buffer(64 * kSampleBytes);
  for (const auto& entry : fs::directory_iterator(folder)) {
    const int file = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    while (read(file, buffer.data(), buffer.size()) > 0) {
    }
    close(file);
  }
}

void forget_files(const std::string& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const int file = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    fdatasync(file);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
  }
}

void read_samples(const std::string& folder, int64_t workers) {
  levin::data::TarShardsOptions options{.shards = {folder}, .fields = {{"data", "bin"}}, .num_workers = workers};
  const auto data = levin::make<levin::data::TarShards>(options);
  data->setup(levin::Stage::kFit);
  auto pass = data->train_dataloader().pass({.seed = 1});
  int64_t count = 0;
  while (auto batch = pass.next()) count += batch->size();
  if (count != kShards * kSamples) throw std::runtime_error("samples are missing");
}

void parse_alone(const std::string& path) {
  csv_parser parser{};
  csv_init(&parser, CSV_STRICT);
  int64_t fields = 0;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::vector<char> buffer(size_t{1} << 18);
  for (ssize_t count = 0; (count = read(file, buffer.data(), buffer.size())) > 0;)
    csv_parse(
        &parser, buffer.data(), static_cast<size_t>(count),
        [](void*, size_t, void* data) { ++*static_cast<int64_t*>(data); }, nullptr, &fields);
  close(file);
  csv_free(&parser);
  if (fields != (kRows + 1) * kColumns) throw std::runtime_error("fields are missing");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: reader_benchmark FOLDER [REPETITIONS]\n");
    return 2;
  }
  const std::string folder = argv[1];
  const int64_t repetitions = argc > 2 ? std::atoll(argv[2]) : 5;
  write_shards(folder + "/shards");
  write_table(folder + "/table.csv");
  const double gigabytes = 1e-9 * static_cast<double>(kSampleBytes) * kShards * kSamples;
  for (const bool cached : {true, false}) {
    std::vector<std::vector<double>> seconds(4);
    for (int64_t i = 0; i < repetitions; ++i) {
      const auto prepare = [&] {
        if (!cached) forget_files(folder + "/shards");
      };
      prepare();
      seconds[0].push_back(timed([&] { read_files(folder + "/shards"); }, /*by_clock=*/true));
      for (const int64_t workers : {0, 1, 2}) {
        prepare();
        seconds[static_cast<size_t>(workers + 1)].push_back(
            timed([&] { read_samples(folder + "/shards", workers); }, /*by_clock=*/true));
      }
    }
    std::printf("tar shards, %s: files alone %.2f GB/s", cached ? "in the page cache" : "from the disk",
                gigabytes / median(seconds[0]));
    for (size_t workers = 0; workers < 3; ++workers)
      std::printf("; %zu workers %.2f GB/s (%.2f)", workers, gigabytes / median(seconds[workers + 1]),
                  median(seconds[0]) / median(seconds[workers + 1]));
    std::printf("\n");
  }
  std::vector<double> alone;
  std::vector<double> whole;
  for (int64_t i = 0; i < repetitions; ++i) {
    alone.push_back(timed([&] { parse_alone(folder + "/table.csv"); }));
    whole.push_back(timed([&] { levin::data::read_csv(folder + "/table.csv"); }));
  }
  std::printf("csv: libcsv alone %.2f s, read_csv %.2f s (%.2f)\n", median(alone), median(whole),
              median(whole) / median(alone));
  if (!fs::exists(folder + "/table.parquet")) return 0;
  std::vector<double> parquet;
  for (int64_t i = 0; i < repetitions; ++i)
    parquet.push_back(timed([&] { levin::data::read_parquet(folder + "/table.parquet"); }));
  std::printf("parquet: read_parquet %.2f s, %.1f million rows/s\n", median(parquet), 1e-6 * kRows / median(parquet));
  return 0;
}
