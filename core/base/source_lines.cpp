#include <levin/core/base/source_lines.h>

#ifdef LEVIN_HAS_LIBDW

#include <dwarf.h>
#include <elfutils/libdw.h>
#include <elfutils/libdwfl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace levin {
namespace {

constexpr size_t kMostLines = 8;

struct Free {
  void operator()(Dwarf_Die* scopes) const { std::free(scopes); }
};
using Scopes = std::unique_ptr<Dwarf_Die, Free>;

/// Folders of headers that come with a compiler, with LibTorch or with Levin.
constexpr std::array<std::string_view, 10> kForeignFolders = {
    "/usr/include/",  "/usr/local/include/", "/usr/lib/",       "/usr/src/",     "/include/c++/",
    "/include/ATen/", "/include/c10/",       "/include/torch/", "/include/fmt/", "/include/levin/"};

bool is_users(std::string_view file) {
  for (const std::string_view folder : kForeignFolders)
    if (file.find(folder) != std::string_view::npos) return false;
  constexpr std::string_view kSourceRoot = LEVIN_SOURCE_ROOT;
  if (!file.starts_with(kSourceRoot)) return true;
  file.remove_prefix(kSourceRoot.size());
  for (const std::string_view folder : {"core/", "strategies/", "callbacks/", "loggers/"})
    if (file.starts_with(folder)) return false;
  return true;
}

/// "Classifier::training_step"; a function of no class by its own name.
std::string function_name(Dwarf_Die* function) {
  // Code names its declaration, and that is where the class is.
  Dwarf_Die declaration = *function;
  Dwarf_Attribute attribute;
  for (const unsigned link : {DW_AT_abstract_origin, DW_AT_specification}) {
    Dwarf_Die next;
    if (dwarf_formref_die(dwarf_attr(&declaration, link, &attribute), &next) != nullptr) declaration = next;
  }
  const char* own_name = dwarf_diename(&declaration);
  std::string name = own_name == nullptr ? "a function" : own_name;
  Dwarf_Die* around = nullptr;
  const int count = dwarf_getscopes_die(&declaration, &around);
  const Scopes scopes(around);
  for (int i = 1; i < count; ++i) {
    const int tag = dwarf_tag(&around[i]);
    if (tag != DW_TAG_class_type && tag != DW_TAG_structure_type) break;
    const char* class_name = dwarf_diename(&around[i]);
    if (class_name == nullptr || class_name[0] == '<') return "a lambda";
    name = fmt::format("{}::{}", class_name, name);
  }
  return name;
}

/// From the current folder, where the file is below it.
std::string shown_path(const std::string& file) {
  const std::string from_here =
      std::filesystem::path(file).lexically_proximate(std::filesystem::current_path()).string();
  return from_here.starts_with("..") ? file : from_here;
}

/// "classifier.cpp:41", or nothing where it is not the user's. `unit`: where the file is named.
std::optional<std::string> users_place(Dwarf_Die* unit, const char* file, int line) {
  if (file == nullptr) return std::nullopt;
  Dwarf_Attribute attribute;
  const char* folder = dwarf_formstring(dwarf_attr(unit, DW_AT_comp_dir, &attribute));
  const std::string path = (std::filesystem::path(folder == nullptr ? "" : folder) / file).lexically_normal().string();
  if (!is_users(path)) return std::nullopt;
  return fmt::format("{}:{}", shown_path(path), line);
}

/// The debug information of this process's program and libraries.
class DebugInformation {
 public:
  DebugInformation() : session_(dwfl_begin(&kCallbacks)) {
    if (session_ == nullptr) return;
    dwfl_linux_proc_report(session_.get(), getpid());
    dwfl_report_end(session_.get(), nullptr, nullptr);
  }

  /// Adds the lines of the user's functions at an address: the innermost inlined one first.
  void add_lines(const void* address, std::vector<std::string>& lines) const {
    const auto place = reinterpret_cast<Dwarf_Addr>(address);  // NOLINT: what libdw takes
    Dwfl_Module* module = dwfl_addrmodule(session_.get(), place);
    Dwarf_Addr bias = 0;
    Dwarf_Die* unit = module == nullptr ? nullptr : unit_at(module, place, bias);
    Dwarf_Line* line = unit == nullptr ? nullptr : dwarf_getsrc_die(unit, place - bias);
    if (line == nullptr) return;
    const char* file = dwarf_linesrc(line, nullptr, nullptr);
    int number = 0;
    dwarf_lineno(line, &number);
    Dwarf_Die* innermost = nullptr;
    Dwarf_Die* around = nullptr;
    const bool is_known = dwarf_getscopes(unit, place - bias, &innermost) > 0;
    const Scopes lexical(innermost);
    const int count = is_known ? dwarf_getscopes_die(innermost, &around) : 0;  // as the code lies
    const Scopes physical(around);
    if (const auto at = count <= 0 ? users_place(unit, file, number) : std::nullopt) lines.push_back(*at);
    Dwarf_Files* files = nullptr;
    dwarf_getsrcfiles(unit, &files, nullptr);
    for (int i = 0; i < count; ++i) {
      Dwarf_Die* scope = &around[i];
      const int tag = dwarf_tag(scope);
      if (tag != DW_TAG_inlined_subroutine && tag != DW_TAG_subprogram) continue;
      if (const auto at = users_place(unit, file, number))
        lines.push_back(fmt::format("{} in {}", *at, function_name(scope)));
      if (tag == DW_TAG_subprogram) return;
      file = files == nullptr ? nullptr : dwarf_filesrc(files, word_of(scope, DW_AT_call_file), nullptr, nullptr);
      number = static_cast<int>(word_of(scope, DW_AT_call_line));
    }
  }

  explicit operator bool() const { return session_ != nullptr; }

 private:
  struct End {
    void operator()(Dwfl* session) const { dwfl_end(session); }
  };

  /// The source that an address was compiled from; nullptr without debug information.
  static Dwarf_Die* unit_at(Dwfl_Module* module, Dwarf_Addr address, Dwarf_Addr& bias) {
    if (Dwarf_Die* found = dwfl_module_addrdie(module, address, &bias)) return found;
    // clang leaves out the table that this looks into.
    for (Dwarf_Die* unit = dwfl_module_nextcu(module, nullptr, &bias); unit != nullptr;
         unit = dwfl_module_nextcu(module, unit, &bias))
      if (dwarf_haspc(unit, address - bias) > 0) return unit;
    return nullptr;
  }

  /// Only what is in the program itself: looking elsewhere may ask a server.
  static int find_no_other_file(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*, GElf_Word,
                                char**) {
    return -1;
  }
  static constexpr Dwfl_Callbacks kCallbacks{.find_elf = dwfl_linux_proc_find_elf,
                                             .find_debuginfo = find_no_other_file,
                                             .section_address = nullptr,
                                             .debuginfo_path = nullptr};

  static Dwarf_Word word_of(Dwarf_Die* die, unsigned name) {
    Dwarf_Attribute attribute;
    Dwarf_Word value = 0;
    dwarf_formudata(dwarf_attr(die, name, &attribute), &value);
    return value;
  }

  std::unique_ptr<Dwfl, End> session_;
};

}  // namespace

std::vector<std::string> user_source_lines(const std::vector<const void*>& stack) {
  std::vector<std::string> lines;
  const DebugInformation information;
  if (!information) return lines;
  for (const void* address : stack) {
    information.add_lines(address, lines);
    if (lines.size() >= kMostLines) break;
  }
  lines.resize(std::min(lines.size(), kMostLines));
  return lines;
}

}  // namespace levin

#else

namespace levin {
std::vector<std::string> user_source_lines(const std::vector<const void*>& /*stack*/) { return {}; }
}  // namespace levin

#endif
