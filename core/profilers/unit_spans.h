#pragma once

#include <levin/core/interfaces/profiler.h>
#include <levin/core/nn/unit.h>

#include <deque>
#include <string>
#include <utility>

namespace levin {

/// Reports every forward of every unit to a profiler, as a span "[Unit]encoder.0 (Block)". Forwards of replicas and
/// repetitions in backward run on threads of their own, and are reported there.
class UnitSpans {
 public:
  explicit UnitSpans(Profiler& profiler) : profiler_(profiler) {}
  ~UnitSpans() { detach(); }
  UnitSpans(const UnitSpans&) = delete;
  UnitSpans& operator=(const UnitSpans&) = delete;

  /// Finds the units of a module, which must live until detach(). The names stay valid until the next find().
  void find(torch::nn::Module& module);
  /// Start and stop reporting. Called while no unit runs.
  void attach();
  void detach();

 private:
  class Hook final : public UnitHook {
   public:
    Hook(Profiler& profiler, std::string name, Unit& unit) : profiler_(profiler), name_(std::move(name)), unit_(unit) {}
    void before_forward(UnitCall& /*call*/) override { profiler_.begin(name_.c_str()); }
    void after_forward(UnitCall& /*call*/) override { profiler_.end(name_.c_str()); }
    Unit& unit() { return unit_; }

   private:
    Profiler& profiler_;
    const std::string name_;
    Unit& unit_;
  };

  Profiler& profiler_;
  std::deque<Hook> hooks_;  ///< a name does not move
  bool attached_ = false;
};

}  // namespace levin
