#pragma once

#include <levin/core/data/batch.h>

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

namespace levin::data {

/// Reads an array that NumPy saved (.npy) as a tensor of its type and shape. Throws levin::Error when the file is of
/// another format, cut short, or has what no tensor has: Python objects, texts, times, records, or numbers whose bytes
/// are in the order of other machines.
at::Tensor read_npy(const std::string& path);

/// Returns the array of a .npy file that is in memory. Errors are led by `name`.
at::Tensor parse_npy(std::string_view bytes, const std::string& name);

/// Returns the array of a .npy file whose values stay in the file, which must not change: they are read when they are
/// used, and are not to be written to. Arrays in Fortran's order are read at once.
at::Tensor map_npy(const std::string& path);

/// Returns a tensor as the bytes of a .npy file (version 1.0 of numpy.lib.format); of types that NumPy lacks, such as
/// bfloat16, as float32.
std::string npy_bytes(const at::Tensor& tensor);

/// Reads the arrays of an .npz file, compressed or not, by their names, in the file's order.
Batch read_npz(const std::string& path);

}  // namespace levin::data
