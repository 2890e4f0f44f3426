// levin-checkpoint: looks into checkpoints, checks them, compares them and makes one file of many.

#include <levin/core/base/error.h>
#include <levin/core/base/memory_size.h>
#include <levin/core/base/utf8.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/checkpoint/consolidate.h>
#include <levin/core/checkpoint/inspect.h>
#include <levin/core/interchange/describe_weights.h>
#include <levin/core/interchange/weights.h>
#include <levin/core/interchange/write_weights.h>
#include <levin/core/tools/tool_main.h>

#include <boost/program_options.hpp>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

namespace {

namespace options = boost::program_options;

constexpr int kSuccess = 0;
constexpr int kDifferent = 1;

constexpr const char* kUsage =
    "Usage: levin-checkpoint show DIR [--tensors]  what a checkpoint holds\n"
    "       levin-checkpoint verify DIR            whether each file is as it was written; status 1 when one is not\n"
    "       levin-checkpoint diff A B              where two checkpoints differ; status 1 when they do\n"
    "       levin-checkpoint consolidate IN OUT    a copy with whole tensors of what several ranks wrote in parts\n"
    "       levin-checkpoint convert IN OUT        the weights in another format, by the end of OUT: .safetensors, "
    ".pth,\n"
    "                                              .ckpt (PyTorch Lightning), or a new folder of Hugging Face\n"
    "\n"
    "DIR, A, B and IN are checkpoint folders, such as version_0/checkpoints/last; show, diff and convert also take "
    "files\n"
    "of torch.save, Lightning and safetensors and folders of Hugging Face. OUT of consolidate is a new folder, a "
    "checkpoint\n"
    "with one model.safetensors, or a new file whose name ends with .safetensors, for the weights alone. Status 2: an "
    "error.\n";

/// A path that is not there counts as one of Levin's, whose errors say so.
bool is_levin(const std::string& path) { return !std::filesystem::exists(path) || levin::is_levin_checkpoint(path); }

int show(const std::string& path, bool with_tensors, const std::string& key) {
  std::cout << levin::printable_text(is_levin(path) && key.empty() ? levin::describe_checkpoint(path, with_tensors)
                                                                   : levin::describe_weights(path, with_tensors, key));
  return kSuccess;
}

int verify(const std::string& path) {
  if (!std::filesystem::exists(path)) throw levin::Error("checkpoint", "there is no checkpoint at " + path);
  std::vector<std::vector<std::string>> rows{{"file", "size", "state"}};
  bool damaged = false;
  try {
    for (const auto& file : levin::check_files(path)) {
      rows.push_back({file.name, levin::size_text(file.size), file.problem.empty() ? "ok" : file.problem});
      damaged = damaged || !file.problem.empty();
    }
  } catch (const levin::Error& error) {
    // A checkpoint without a good manifest is damaged, whatever its other files are.
    std::cout << error.what() << "\n";
    return kDifferent;
  }
  std::cout << levin::printable_text(levin::table_text(rows));
  return damaged ? kDifferent : kSuccess;
}

int diff(const std::string& a, const std::string& b, const std::string& key) {
  // One file of torch.save may be compared with another format.
  const auto key_of = [&](const std::string& path) {
    return std::filesystem::is_directory(path) || path.ends_with(".safetensors") ? std::string() : key;
  };
  const auto difference =
      is_levin(a) && is_levin(b) ? levin::diff_checkpoints(a, b) : levin::diff_weights(a, b, key_of(a), key_of(b));
  for (const auto& line : difference.lines) std::cout << levin::printable_text(line) << "\n";
  std::cout << "same: " << difference.same_tensors << " tensors, " << difference.same_values
            << " values; different: " << difference.lines.size() << "\n";
  return difference.equal() ? kSuccess : kDifferent;
}

int consolidate(const std::string& source, const std::string& target) {
  levin::consolidate_checkpoint(source, target);
  return kSuccess;
}

int convert(const std::string& source, const std::string& target, const options::variables_map& parsed) {
  levin::WriteWeightsOptions how;
  if (const auto rules = parsed["rules"].as<std::string>(); !rules.empty())
    how.rules = levin::ConfigCodec<levin::WeightRules>::parse(
        std::filesystem::is_regular_file(rules) ? levin::Config::load(rules) : levin::Config::scalar(rules), "rules");
  if (parsed.count("reverse") > 0) how.rules = how.rules.reversed();
  how.key = parsed["key"].as<std::string>();
  how.config = parsed["model-config"].as<std::string>();
  how.max_shard_bytes = parsed["max-shard-bytes"].as<int64_t>();
  if (how.max_shard_bytes < 1)
    throw levin::Error("command line",
                       "--max-shard-bytes must be at least 1; got " + std::to_string(how.max_shard_bytes));
  const std::string format = parsed["format"].as<std::string>();
  levin::convert_weights(source, target,
                         format.empty() ? levin::weights_format_of(target) : levin::weights_format_of_name(format), how,
                         parsed.count("weights-only") > 0);
  return kSuccess;
}

int run(int argc, char** argv) {
  options::options_description visible("Options");
  visible.add_options()("help,h", "print this help")("tensors", "show: list every tensor")(
      "key", options::value<std::string>()->default_value("", ""),
      "show, diff, convert: where files of torch.save hold the weights, as in ema.state_dict; '.': the whole file")(
      "rules", options::value<std::string>()->default_value("", ""),
      "convert: how names change: bert, gpt2, resnet, vit, or a YAML file with a list of rules")(
      "reverse", "convert: from the module's names to those of the rules' files")(
      "model-config", options::value<std::string>()->default_value("", ""),
      "convert to a Hugging Face folder: its config.json, where IN has none")(
      "max-shard-bytes", options::value<int64_t>()->default_value(5'000'000'000, "5000000000"),
      "convert to a Hugging Face folder: size of a file beyond which there are several")(
      "format", options::value<std::string>()->default_value("", ""),
      "convert: levin, safetensors, pytorch, lightning or huggingface, whatever OUT ends with")(
      "weights-only", "convert to .ckpt: without optimizers and loops");
  options::options_description all;
  all.add(visible).add_options()("words", options::value<std::vector<std::string>>()->default_value({}, ""));
  options::positional_options_description positions;
  positions.add("words", -1);
  options::variables_map parsed;
  options::store(options::command_line_parser(argc, argv).options(all).positional(positions).run(), parsed);

  const auto words = parsed["words"].as<std::vector<std::string>>();
  if (parsed.count("help") > 0) {
    std::cout << kUsage << "\n" << visible;
    return kSuccess;
  }
  const std::string command = words.empty() ? "" : words.front();
  const size_t paths = words.empty() ? 0 : words.size() - 1;
  if (parsed.count("tensors") > 0 && command != "show")
    throw levin::Error("command line", "--tensors belongs to 'show'; got the command '" + command + "'");
  if (!parsed["key"].defaulted() && command != "show" && command != "diff" && command != "convert")
    throw levin::Error("command line",
                       "--key belongs to 'show', 'diff' and 'convert'; got the command '" + command + "'");
  for (const char* option : {"rules", "reverse", "model-config", "max-shard-bytes", "format", "weights-only"})
    if (parsed.count(option) > 0 && !parsed[option].defaulted() && command != "convert")
      throw levin::Error("command line",
                         std::string("--") + option + " belongs to 'convert'; got the command '" + command + "'");
  const std::string key = parsed["key"].as<std::string>();
  if (command == "show" && paths == 1) return show(words[1], parsed.count("tensors") > 0, key);
  if (command == "verify" && paths == 1) return verify(words[1]);
  if (command == "diff" && paths == 2) return diff(words[1], words[2], key);
  if (command == "consolidate" && paths == 2) return consolidate(words[1], words[2]);
  if (command == "convert" && paths == 2) return convert(words[1], words[2], parsed);
  const std::vector<std::string> commands{"show", "verify", "diff", "consolidate", "convert"};
  if (std::find(commands.begin(), commands.end(), command) != commands.end()) {
    const bool takes_two = command == "diff" || command == "consolidate" || command == "convert";
    throw levin::Error("command line", "'" + command + "' takes " + (takes_two ? "two paths" : "one folder") +
                                           "; got " + std::to_string(paths) + "; hint: --help");
  }
  throw levin::Error("command line", "unknown command; got '" + command + "'" +
                                         levin::valid_names_hint(command, commands) + "; hint: --help");
}

}  // namespace

int main(int argc, char** argv) { return levin::tool_main("checkpoint", run, argc, argv); }
