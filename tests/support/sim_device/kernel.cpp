#include "tests/support/sim_device/kernel.h"

#include "tests/support/sim_device/hardware.h"
#include "tests/support/sim_device/kernel_launch.h"
#include "tests/support/sim_device/recording.h"

#include <mutex>

namespace levin::testing::sim {

Tensors run_kernel(const std::string& name, const Tensors& read, const Tensors& written,
                   const std::function<Tensors(const Tensors&)>& function) {
  const auto run = [name, read, written, function](size_t* stream) {
    KernelLaunch launch(name);
    Tensors on_cpu;
    for (const at::Tensor& tensor : read) on_cpu.push_back(launch.read(tensor));
    for (const at::Tensor& tensor : written) on_cpu.push_back(launch.write(tensor));
    launch.start();
    if (stream != nullptr) *stream = launch.stream();
    Tensors results;
    for (const at::Tensor& made : function(on_cpu)) results.push_back(launch.result(made));
    return results;
  };
  size_t stream = 0;
  Tensors results = run(&stream);
  const std::lock_guard lock(Hardware::instance().mutex());
  if (Recording* recording = Recording::of_stream(stream))
    recording->add([run, results] {
      const Tensors again = run(nullptr);
      for (size_t i = 0; i < results.size(); ++i)
        if (results[i].defined()) at::Tensor(results[i]).copy_(again[i]);
    });
  return results;
}

}  // namespace levin::testing::sim
