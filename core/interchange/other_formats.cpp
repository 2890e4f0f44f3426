#include <levin/core/interchange/other_formats.h>

#include <array>
#include <filesystem>

namespace levin {
namespace {

constexpr const char* kSaveInPython = "; hint: load it with the program that wrote it and save it as safetensors";

struct FirstBytes {
  std::string_view bytes;
  const char* what;
};

constexpr std::array kFirstBytes{
    FirstBytes{"\x89HDF", "an HDF5 file, as Keras and TensorFlow write"},
    FirstBytes{"\x93NUMPY", "a NumPy array"},
    FirstBytes{"GGUF", "a GGUF file, as llama.cpp reads"},
    FirstBytes{"\x1f\x8b", "a file that gzip packed"},
};

/// An ONNX file begins with its version, a small number, and the name of the program that wrote it.
bool is_onnx(std::string_view start) {
  return start.size() > 4 && start[0] == '\x08' && start[1] > 0 && start[1] < 32 && start[2] == '\x12';
}

}  // namespace

std::string other_format_of(const std::string& path, std::string_view start) {
  const std::string name = std::filesystem::path(path).filename().string();
  if (start.empty()) return "an empty file";
  if (start.starts_with("version https://git-lfs"))
    return "a pointer of Git LFS to the file itself; hint: 'git lfs pull' fetches that";
  const size_t text = start.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (text != std::string_view::npos &&
      (start.substr(text).starts_with("<!") || start.substr(text).starts_with("<html")))
    return "a web page; hint: fetch the file itself, by the address behind its download button";
  for (const auto& [bytes, what] : kFirstBytes)
    if (start.starts_with(bytes)) return what + std::string(kSaveInPython);
  if (start.size() > 262 && start.substr(257, 5) == "ustar") return "a tar archive, as PyTorch wrote before 0.2";
  if (name.ends_with(".msgpack")) return std::string("weights of Flax") + kSaveInPython;
  if (name.ends_with(".onnx") || is_onnx(start))
    return "an ONNX model, made to be run; hint: use the weights that it was exported from";
  if (name.ends_with(".pb") || name.find(".data-0") != std::string::npos || name.ends_with(".ckpt.index"))
    return std::string("a file of TensorFlow") + kSaveInPython;
  return "";
}

}  // namespace levin
