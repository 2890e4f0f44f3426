#include <levin/core/base/thread_generator.h>

#include <levin/core/base/mutex.h>
#include <levin/core/base/permanent_library.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/equal.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace levin {
namespace {

// LibTorch keeps this dispatch key for modes that are switched on thread by thread, and uses it in its own tests only.
// It comes before autograd and autocast, so that these see the operator as if the caller had given the generator.
constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local at::Generator thread_generator;

/// Stands in front of one operator that takes a generator: fills in the thread's where the caller gave none.
class FillInGenerator final : public c10::OperatorKernel {
 public:
  FillInGenerator(size_t arguments, size_t generator, std::optional<size_t> device)
      : arguments_(arguments), generator_(generator), device_(device) {}

  void operator()(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    c10::IValue* const arguments = stack->data() + (stack->size() - arguments_);
    c10::IValue& generator = arguments[generator_];
    // An undefined generator counts as none, but LibTorch cannot take it off the stack again.
    const bool given = generator.isGenerator() && generator.isPtrType();
    // LibTorch hands a thread's dispatch keys on to threads that work for it; those have no generator of their own.
    const bool fill_in = !given && thread_generator.defined() && is_on_cpu(arguments);
    if (!given) generator = fill_in ? c10::IValue(thread_generator) : c10::IValue();
    operation.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
  }

 private:
  bool is_on_cpu(const c10::IValue* arguments) const {
    if (device_ && !arguments[*device_].isNone()) return arguments[*device_].toDevice().is_cpu();
    return std::all_of(arguments, arguments + arguments_, [](const c10::IValue& argument) {
      return !argument.isTensor() || !argument.toTensor().defined() || argument.toTensor().device().is_cpu();
    });
  }

  size_t arguments_;
  size_t generator_;
  std::optional<size_t> device_;
};

std::optional<size_t> index_of(const c10::FunctionSchema& schema, const c10::Type& type) {
  const auto& arguments = schema.arguments();
  const auto found = std::find_if(arguments.begin(), arguments.end(),
                                  [&](const c10::Argument& argument) { return *argument.type() == type; });
  if (found == arguments.end()) return std::nullopt;
  return static_cast<size_t>(found - arguments.begin());
}

void register_kernels(torch::Library& operators) {
  const auto generator_type = c10::OptionalType::create(c10::GeneratorType::get());
  const auto device_type = c10::OptionalType::create(c10::DeviceObjType::get());
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != "aten") continue;
    const auto operation = dispatcher.findSchema(name);
    if (!operation) continue;
    const c10::FunctionSchema& schema = operation->schema();
    const auto generator = index_of(schema, *generator_type);
    if (!generator) continue;
    const std::string full_name = name.name + (name.overload_name.empty() ? "" : "." + name.overload_name);
    operators.impl(full_name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<FillInGenerator>(
                                          schema.arguments().size(), *generator, index_of(schema, *device_type))));
  }
}

void ensure_registered() {
  static std::once_flag once;
  std::call_once(once, [] {
    permanent_library(torch::Library::IMPL, "_", kKey).fallback(torch::CppFunction::makeFallthrough());
    register_kernels(permanent_library(torch::Library::IMPL, "aten", kKey));
  });
}

void enter(at::Generator generator) {
  thread_generator = std::move(generator);
  c10::impl::tls_set_dispatch_key_included(kKey, thread_generator.defined());
}

/// The thread that draws from the process's default generator, and what its calls of trainers have made of that.
class DefaultGenerator {
 public:
  static DefaultGenerator& instance() {
    static auto* instance = new DefaultGenerator;  // threads end after static objects, too
    return *instance;
  }

  /// Makes this thread the owner where there is none. Returns the generator that it has to take otherwise; undefined
  /// for the owner.
  at::Generator claim() {
    const MutexLock lock(mutex_);
    if (owner_ == std::this_thread::get_id()) return {};
    const bool untouched = calls_ > 0 || is_as_after_call();
    if (owner_) return untouched ? before_call_.clone() : copy();
    // What a thread that has ended drew in its calls does not count.
    if (untouched) set(before_call_);
    own();
    return {};
  }

  void inherit() {
    const MutexLock lock(mutex_);
    own();
  }

  void begin_call() {
    const MutexLock lock(mutex_);
    if (owner_ != std::this_thread::get_id() || calls_++ > 0) return;
    if (!is_as_after_call()) before_call_ = copy();
  }

  void end_call() {
    const MutexLock lock(mutex_);
    if (owner_ != std::this_thread::get_id() || --calls_ > 0) return;
    after_call_ = state();
  }

  void release() {
    const MutexLock lock(mutex_);
    if (owner_ == std::this_thread::get_id()) owner_.reset();
  }

 private:
  /// Ends the ownership with the thread.
  struct Release {
    ~Release() { instance().release(); }
  };

  void own() LEVIN_REQUIRES(mutex_) {
    static thread_local Release release;
    owner_ = std::this_thread::get_id();
    calls_ = 0;
  }

  static at::Generator copy() {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    return generator.clone();
  }
  static at::Tensor state() {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    return generator.get_state();
  }
  static void set(const at::Generator& from) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const at::Tensor state = from.get_state();
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
  bool is_as_after_call() const LEVIN_REQUIRES(mutex_) {
    return after_call_.defined() && at::equal(state(), after_call_);
  }

  Mutex mutex_;
  std::optional<std::thread::id> owner_ LEVIN_GUARDED_BY(mutex_);
  int64_t calls_ LEVIN_GUARDED_BY(mutex_) = 0;  ///< of the owner, one inside another
  /// Before the owner's calls, unless somebody else drew or seeded between them.
  at::Generator before_call_ LEVIN_GUARDED_BY(mutex_);
  at::Tensor after_call_ LEVIN_GUARDED_BY(mutex_);  ///< after the newest of them
};

}  // namespace

ThreadGeneratorScope::ThreadGeneratorScope(uint64_t seed)
    : ThreadGeneratorScope(at::detail::createCPUGenerator(seed)) {}

ThreadGeneratorScope::ThreadGeneratorScope(at::Generator generator) : previous_(thread_generator) {
  ensure_registered();
  enter(std::move(generator));
}

ThreadGeneratorScope::~ThreadGeneratorScope() { enter(std::move(previous_)); }

at::Generator default_cpu_generator() {
  return thread_generator.defined() ? thread_generator : at::detail::getDefaultCPUGenerator();
}

void claim_generator() {
  if (thread_generator.defined()) return;
  at::Generator own = DefaultGenerator::instance().claim();
  if (!own.defined()) return;
  ensure_registered();
  enter(std::move(own));
}

bool has_own_generator() { return thread_generator.defined(); }

void inherit_generator(at::Generator generator) {
  if (generator == at::detail::getDefaultCPUGenerator()) return DefaultGenerator::instance().inherit();
  ensure_registered();
  enter(std::move(generator));
}

TrainerCallScope::TrainerCallScope() {
  claim_generator();
  DefaultGenerator::instance().begin_call();
}

TrainerCallScope::~TrainerCallScope() { DefaultGenerator::instance().end_call(); }

}  // namespace levin
