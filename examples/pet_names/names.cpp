#include "names.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <random>
#include <set>

namespace example {

namespace {

/// The folder of the Python package `names`, which has lists of the US census of 1990.
std::string folder_of_package(const std::string& python) {
  const std::string command = "'" + python + "' -c 'import names; print(names.__path__[0], end=\"\")'";
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw levin::Error("data", "cannot start " + python);
  std::string folder;
  std::array<char, 4096> part{};
  for (size_t count; (count = fread(part.data(), 1, part.size(), pipe)) > 0;) folder.append(part.data(), count);
  if (pclose(pipe) != 0 || folder.empty())
    throw levin::Error("data",
                       "the Python '" + python +
                           "' has no package names; hint: pip install names==0.3.0, set data.python to a Python "
                           "that has it, or set data.path to a file with a name a line");
  return folder;
}

/// A name a line. It ends before the first digit: lists of a census go on with numbers.
void read_names(const std::string& path, std::set<std::string>& names) {
  std::ifstream file(path);
  if (!file) throw levin::Error("data", "cannot read the names in " + path + "; hint: data.path names a text file");
  for (std::string line; std::getline(file, line);) {
    line.resize(std::min(line.find_first_of("0123456789\r"), line.size()));
    line.resize(line.find_last_not_of(" \t") + 1);
    if (!line.empty()) names.insert(line);
  }
}

}  // namespace

void NamesOptions::describe(levin::Schema<NamesOptions>& schema) {
  using O = NamesOptions;
  schema.field("path", &O::path, "a UTF-8 file with a name a line; null: the lists of the Python package names");
  schema.field("python", &O::python, "the Python that has the package");
  schema.field("surnames", &O::surnames, "the package's 88,799 surnames too, not only its 5,163 first names");
  schema.field("window", &O::window, "characters that a prediction sees").at_least(1);
  schema.field("batch_size", &O::batch_size, "windows in a batch of one rank").at_least(1);
  schema
      .field("global_batch_size", &O::global_batch_size,
             "windows in a batch of all ranks together, divided by their number; replaces batch_size")
      .at_least(1);
  schema.field("num_workers", &O::num_workers, "threads that fetch batches ahead").at_least(0);
  schema.field("val_share", &O::val_share, "share of the names held out for validation").at_least(0).below(1);
  schema.field("beginning", &O::beginning, "what predicted names begin with");
  schema.field("samples", &O::samples, "how many names are predicted").at_least(1);
}

void Names::setup(levin::Stage /*stage*/) {
  if (vocabulary_) return;
  std::set<std::string> sorted;
  if (options_.path) {
    read_names(*options_.path, sorted);
  } else {
    const std::string folder = folder_of_package(options_.python);
    read_names(folder + "/dist.female.first", sorted);
    read_names(folder + "/dist.male.first", sorted);
    if (options_.surnames) read_names(folder + "/dist.all.last", sorted);
  }
  std::vector<std::string> names(sorted.begin(), sorted.end());
  // The same ones are held out in every run, whatever its seed.
  std::shuffle(names.begin(), names.end(), std::mt19937(0));
  const auto held_out = static_cast<int64_t>(options_.val_share * static_cast<double>(names.size()));
  const std::vector<std::string> training(names.begin() + held_out, names.end());
  if (training.empty()) throw levin::Error("data", "there is no name; hint: data.path names a file with a name a line");

  std::string text = "\n";
  for (const std::string& name : names) text += name;
  vocabulary_.emplace(text, levin::data::CharacterVocabulary::LineEnds::kKeep);
  train_ = std::make_shared<levin::data::TensorDataset>(windows_of(training));
  if (held_out > 0) {
    const std::vector<std::string> validation(names.begin(), names.begin() + held_out);
    validation_ = std::make_shared<levin::data::TensorDataset>(windows_of(validation));
  }
  // The window before the stop sign of a name that is `beginning` alone.
  const torch::Tensor window = windows_of({options_.beginning})["window"].slice(0, -1);
  beginnings_ = std::make_shared<levin::data::TensorDataset>(
      levin::Batch{{"window", window.expand({options_.samples, options_.window})}});
}

levin::Batch Names::windows_of(const std::vector<std::string>& names) const {
  std::vector<torch::Tensor> windows;
  std::vector<torch::Tensor> next;
  for (const std::string& name : names) {
    const std::string line = name + "\n";
    torch::Tensor characters = torch::empty({static_cast<int64_t>(line.size())}, torch::kLong);
    const int64_t count = vocabulary_->encode(line, {characters.mutable_data_ptr<int64_t>(), line.size()});
    characters = characters.slice(0, 0, count);
    const torch::Tensor padded = torch::constant_pad_nd(characters.slice(0, 0, -1), {options_.window, 0});
    windows.push_back(padded.unfold(0, options_.window, 1));
    next.push_back(characters);
  }
  return {{"window", torch::cat(windows)}, {"next", torch::cat(next)}};
}

std::string Names::decode(const torch::Tensor& characters) const {
  const torch::Tensor on_host = characters.cpu().contiguous();
  const std::string text =
      vocabulary_->decode({on_host.const_data_ptr<int64_t>(), static_cast<size_t>(on_host.numel())});
  return text.substr(0, text.find('\n'));
}

levin::DataLoader Names::loader_of(const Dataset& dataset, bool shuffle) const {
  if (dataset == nullptr) return {};
  return levin::DataLoader(dataset, {.batch_size = options_.batch_size,
                                     .shuffle = shuffle,
                                     .num_workers = options_.num_workers,
                                     .global_batch_size = options_.global_batch_size});
}

}  // namespace example
