#include <levin/core/cli/cli_arguments.h>

#include <levin/core/base/error.h>
#include <levin/core/base/setting_variables.h>

#include <fmt/format.h>
#include <boost/program_options.hpp>

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace levin {
namespace {

namespace po = boost::program_options;

/// The options that are no part of the configuration. All others are settings, which Boost passes on as it finds them.
po::options_description own_options() {
  po::options_description options;
  options.add_options()("config", po::value<std::string>())("print_config", "")("print-config", "")("print_schema", "")(
      "print-schema", "")("print_completion", po::value<std::string>())("print-completion", po::value<std::string>())(
      "help", "")("version", "")("local_rank", po::value<std::string>())("local-rank", po::value<std::string>());
  return options;
}

/// Whether the text is one quotation of YAML and nothing else.
bool is_quotation(std::string_view text) {
  if (text.empty() || (text.front() != '"' && text.front() != '\'')) return false;
  const char mark = text.front();
  size_t i = 1;
  for (; i < text.size(); ++i) {
    if (mark == '"' && text[i] == '\\') {
      ++i;
    } else if (text[i] == mark) {
      if (mark == '"' || i + 1 == text.size() || text[i + 1] != mark) break;
      ++i;
    }
  }
  return i + 1 == text.size();
}

/// Whether the text may be meant for an option that is no text.
bool is_number_or_boolean(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return text == "true" || text == "false" || (error == std::errc() && end == text.data() + text.size());
}

bool is_null_word(std::string_view text) { return text == "null" || text == "Null" || text == "NULL" || text == "~"; }

/// A value as YAML, but that text is taken as it is: YAML would drop what looks like a comment, a marker, a tag or an
/// anchor, and fold its lines. Lists and mappings keep their text (Config::text), and those that are broken are
/// unquoted text, since the option's type decides what is meant.
Config parse_value(const std::string& text, const Origin& origin) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t begin = std::min(text.find_first_not_of(kBlanks), text.size());
  const std::string trimmed = text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
  Config value;
  try {
    value = Config::parse(text, origin, /*fixed_origin=*/true);
  } catch (const ConfigError&) {
    const bool is_meant_as_yaml =
        !text.empty() && std::string_view("[{\"'").find(text.front()) != std::string_view::npos;
    return Config::scalar(text, /*quoted=*/!is_meant_as_yaml, origin);
  }
  if (value.is_sequence() || value.is_mapping()) return value;
  const bool is_yaml = value.is_null() ? is_null_word(trimmed)
                       : value.quoted()
                           ? is_quotation(trimmed)
                           : value.text() == text || (value.text() == trimmed && is_number_or_boolean(trimmed));
  return is_yaml ? value : Config::scalar(text, /*quoted=*/true, origin);
}

ConfigError as_config_error(const po::error& error) {
  return ConfigError(fmt::format("command line: {}; hint: --help", error.what()));
}

std::vector<po::option> parse_tokens(int argc, const char* const* argv) {
  // Without short options "-1" is a value, and without guessing "--ckp" is no "--ckpt".
  constexpr int kStyle = po::command_line_style::allow_long | po::command_line_style::long_allow_adjacent |
                         po::command_line_style::long_allow_next;
  const auto options = own_options();
  try {
    return po::command_line_parser(argc, argv).options(options).style(kStyle).allow_unregistered().run().options;
  } catch (const po::invalid_command_line_syntax& error) {
    if (error.kind() != po::invalid_syntax::empty_adjacent_parameter) throw as_config_error(error);
    throw ConfigError(
        fmt::format("command line: there is no value after '{}='; hint: null is no value, '\"\"' (with both "
                    "kinds of quotation marks) an empty text",
                    error.get_option_name()));
  } catch (const po::error& error) {
    throw as_config_error(error);
  }
}

/// Options that a command has a section for, and that may go without its name.
struct OwnOptions {
  std::string_view command;
  std::string_view section;
  std::vector<std::string_view> names;
};

const std::vector<OwnOptions>& own_options_of_commands() {
  static const std::vector<OwnOptions> all = {
      {"export", "export", {"format", "output"}},
      {"plan", "plan", {"output"}},
      {"data", "inspect", {"stage", "output", "images", "num_workers", "seconds"}}};
  return all;
}

/// The options of a command's section, by the first part of their paths.
bool is_option_of(const CommandSection& section, std::string_view path) {
  // Every command has these.
  if (path == "seed" || path == "ckpt") return false;
  return std::any_of(section.fields.begin(), section.fields.end(),
                     [&](const FieldDoc& field) { return field.name == path.substr(0, path.find('.')); });
}

/// Puts a command's own options into its section. `output`: the file after -o; empty: there is none.
void add_own_settings(CliArguments& arguments, const std::string& output, const std::vector<CommandSection>& sections) {
  if (!output.empty())
    arguments.settings.push_back({"output", Config::scalar(output, /*quoted=*/true, {.source = "command line -o"})});
  for (const auto& own : own_options_of_commands()) {
    if (arguments.command != own.command) continue;
    for (auto& setting : arguments.settings)
      if (std::find(own.names.begin(), own.names.end(), setting.path) != own.names.end())
        setting.path = fmt::format("{}.{}", own.section, setting.path);
  }
  for (const auto& section : sections) {
    if (arguments.command != section.name) continue;
    for (auto& setting : arguments.settings)
      if (is_option_of(section, setting.path)) setting.path = fmt::format("{}.{}", section.name, setting.path);
  }
}

}  // namespace

CliArguments parse_arguments(int argc, const char* const* argv, const std::vector<std::string>& commands,
                             const std::vector<CommandSection>& sections) {
  CliArguments arguments;
  arguments.program = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "program";
  const auto is_command = [&](const std::string& word) {
    return std::find(commands.begin(), commands.end(), word) != commands.end();
  };

  const auto tokens = parse_tokens(argc, argv);
  std::vector<std::string> words;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto& token = tokens[i];
    const std::string& key = token.string_key;
    if (key.empty()) {
      words.insert(words.end(), token.value.begin(), token.value.end());
    } else if (key == "config") {
      arguments.config_files.push_back(token.value.front());
    } else if (key == "print_config" || key == "print-config") {
      arguments.print_config = true;
    } else if (key == "print_schema" || key == "print-schema") {
      arguments.print_schema = true;
    } else if (key == "print_completion" || key == "print-completion") {
      arguments.completion = token.value.front();
    } else if (key == "help") {
      arguments.help = true;
    } else if (key == "version") {
      arguments.version = true;
    } else if (key == "local_rank" || key == "local-rank") {
      arguments.local_rank = token.value.front();
    } else if (token.unregistered) {
      // The value follows "=", is the next word, or is left out of a flag.
      std::string text = "true";
      const bool word_follows = i + 1 < tokens.size() && tokens[i + 1].string_key.empty();
      if (!token.value.empty()) {
        text = token.value.front();
      } else if (word_follows && (!words.empty() || !is_command(tokens[i + 1].value.front()))) {
        text = tokens[++i].value.front();
      }
      arguments.settings.push_back({key, parse_value(text, {.source = "command line --" + key})});
    }
  }

  std::string output;
  if (const auto option = std::find(words.begin(), words.end(), "-o"); option != words.end()) {
    if (option + 1 == words.end()) throw ConfigError("command line: there is no file after '-o'; hint: -o model.onnx");
    output = *(option + 1);
    words.erase(option, option + 2);
  }
  if (std::erase(words, "-h") > 0) arguments.help = true;
  if (!words.empty() && (is_command(words.front()) || !arguments.help)) {
    arguments.command = words.front();
    words.erase(words.begin());
    if (commands.empty())
      throw ConfigError(
          fmt::format("command line: unexpected argument '{}'; valid: options alone, since this program "
                      "has no commands",
                      arguments.command));
    if (!is_command(arguments.command))
      throw ConfigError(fmt::format("command line: unknown command '{}'{}; hint: --help", arguments.command,
                                    valid_names_hint(arguments.command, commands)));
  }
  add_own_settings(arguments, output, sections);
  if (arguments.help && !words.empty()) {
    arguments.help_topic = words.front();
    words.erase(words.begin());
  }
  if (!words.empty())
    throw ConfigError(fmt::format(
        "command line: unexpected argument '{}'; hint: options are written --trainer.max_epochs=3", words.front()));
  return arguments;
}

std::vector<CliArguments::Setting> environment_settings() {
  constexpr size_t kPrefix = std::string_view("LEVIN_").size();
  std::vector<CliArguments::Setting> settings;
  for (const auto& [name, value] : setting_variables()) {
    std::string path;
    for (size_t i = kPrefix; i < name.size(); ++i) {
      const bool dot = name.compare(i, 2, "__") == 0;
      path += dot ? '.' : static_cast<char>(std::tolower(static_cast<unsigned char>(name[i])));
      if (dot) ++i;
    }
    settings.push_back({path, parse_value(value, {.source = name})});
  }
  std::sort(settings.begin(), settings.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return settings;
}

}  // namespace levin
