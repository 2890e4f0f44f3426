#pragma once

#include <levin/core/export/export_options.h>
#include <levin/core/export/exported_function.h>

#include <string>

namespace torch::nn {
class Module;
}

namespace levin {

class Module;

/// Writes what `function` computes with the parameters and buffers of `module`, traced on a batch like `example` (whose
/// values matter only where the function checks them), on the CPU. What the function does not read of the example is no
/// input of the file. The module, its buffers, its mode and the random generators are afterwards as they were. Throws
/// levin::Error naming what cannot be exported; then there is no file, or still the old one.
ExportReport export_model(torch::nn::Module& module, const ExportedFunction& function, const Batch& example,
                          const std::string& path, const ExportOptions& options = {});

/// Writes the module's export_step.
ExportReport export_model(Module& module, const Batch& example, const std::string& path,
                          const ExportOptions& options = {});

}  // namespace levin
