#include "tests/support/sim_device/hardware.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <algorithm>
#include <iterator>

namespace levin::testing::sim {

Hardware& Hardware::instance() {
  static auto* const machine = new Hardware();  // threads may use it while static objects are destroyed
  return *machine;
}

Hardware::Hardware() {
  static_assert(std::size(decltype(started_){}) == kMaximumDevices);
  pthread_atfork(nullptr, nullptr, [] {
    Hardware& machine = instance();
    machine.forked_after_start_ =
        std::any_of(std::begin(machine.started_), std::end(machine.started_), std::identity{});
  });
}

void Hardware::configure(const HardwareOptions& options) {
  TORCH_CHECK(options.devices >= 1 && options.devices <= kMaximumDevices, "sim: 1 to ", int{kMaximumDevices},
              " devices can be simulated; got ", int{options.devices});
  options_ = options;
}

void Hardware::set_copies(CopyTiming timing) {
  const std::lock_guard lock(mutex_);
  options_.copies = timing;
}

void Hardware::set_memory(size_t bytes) {
  const std::lock_guard lock(mutex_);
  options_.memory = bytes;
}

void Hardware::check_index(c10::DeviceIndex device) const {
  TORCH_CHECK(device >= 0 && device < options_.devices, "sim: invalid device index ", int{device}, "; there are ",
              int{options_.devices}, " devices");
}

void Hardware::start(c10::DeviceIndex device) {
  TORCH_CHECK(!forked_after_start_, "sim: a forked process cannot use a device that its parent had started");
  check_index(device);
  check_alive(device);
  started_[device] = true;
}

void Hardware::lose(c10::DeviceIndex device) { lost_[device] = true; }

void Hardware::give_back(c10::DeviceIndex device) { lost_[device] = false; }

void Hardware::check_alive(c10::DeviceIndex device) const {
  TORCH_CHECK(!lost_[device], "sim: device lost: sim:", int{device}, " does not answer any more");
}

void Hardware::set_missing_operator(const std::string& name) {
  const std::lock_guard lock(mutex_);
  missing_operator_ = name;
}

std::string Hardware::missing_operator() const {
  const std::lock_guard lock(mutex_);
  return missing_operator_;
}

bool Hardware::is_started(c10::DeviceIndex device) const { return started_[device]; }

}  // namespace levin::testing::sim
