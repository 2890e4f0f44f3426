#include <levin/core/nn/flop_counter.h>

#include <levin/core/base/mutex.h>
#include <levin/core/nn/checkpointed_call.h>
#include <levin/core/nn/kept_results.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace levin {
namespace {

using Inputs = c10::ArrayRef<c10::IValue>;

c10::IntArrayRef sizes_of(const Inputs& inputs, size_t index) { return inputs[index].toTensor().sizes(); }

int64_t product(c10::IntArrayRef sizes) {
  int64_t result = 1;
  for (const int64_t size : sizes) result *= size;
  return result;
}

/// Of [..., m, k] by [..., k, n], at two indices of the inputs.
template <size_t kLeft, size_t kRight>
int64_t matrix_product(const Inputs& inputs) {
  return 2 * product(sizes_of(inputs, kLeft)) * sizes_of(inputs, kRight).back();
}

/// Of a matrix at an index of the inputs and a vector.
template <size_t kMatrix>
int64_t matrix_by_vector(const Inputs& inputs) {
  return 2 * product(sizes_of(inputs, kMatrix));
}

/// Every weight is used once for each example and place: of the output, or where it is transposed of the input.
int64_t convolution_at(int64_t places, c10::IntArrayRef weight, int64_t examples) {
  return 2 * examples * places * product(weight);
}

/// (input, weight, bias, stride, padding, dilation, transposed, ...)
int64_t convolution(const Inputs& inputs) {
  const c10::IntArrayRef input = sizes_of(inputs, 0);
  const c10::IntArrayRef weight = sizes_of(inputs, 1);
  if (inputs[6].toBool()) return convolution_at(product(input.slice(2)), weight, input[0]);
  const auto stride = inputs[3].toDimVector();
  const auto padding = inputs[4].toDimVector();
  const auto dilation = inputs[5].toDimVector();
  // One number may stand for all dimensions.
  const auto at = [](const auto& values, size_t i) { return values.size() == 1 ? values[0] : values[i]; };
  int64_t places = 1;
  for (size_t i = 0; i + 2 < input.size(); ++i)
    places *= (input[i + 2] + 2 * at(padding, i) - at(dilation, i) * (weight[i + 2] - 1) - 1) / at(stride, i) + 1;
  return convolution_at(places, weight, input[0]);
}

/// (grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask)
/// The gradients of the input and of the weight take as many operations each as the forward.
int64_t convolution_backward(const Inputs& inputs) {
  const c10::IntArrayRef places = sizes_of(inputs, inputs[7].toBool() ? 1 : 0).slice(2);
  const auto mask = inputs[10].toBoolList();
  const int64_t gradients = (mask.get(0) ? 1 : 0) + (mask.get(1) ? 1 : 0);
  return gradients * convolution_at(product(places), sizes_of(inputs, 2), sizes_of(inputs, 1)[0]);
}

/// (query, key, value, ...), each [batch, heads, length, width]; `products` of the scores' shape have the width of the
/// query and key, and `value_products` that of the value.
int64_t attention_products(const Inputs& inputs, size_t query, int64_t products, int64_t value_products) {
  const c10::IntArrayRef q = sizes_of(inputs, query);
  const int64_t scores = product(q.slice(0, q.size() - 1)) * sizes_of(inputs, query + 1)[q.size() - 2];
  return 2 * scores * (products * q.back() + value_products * sizes_of(inputs, query + 2).back());
}

/// Scores; their product with the value.
int64_t attention(const Inputs& inputs) { return attention_products(inputs, 0, 1, 1); }

/// (grad_output, query, key, value, ...): the scores again and the gradients of query and key; those of the scores and
/// of the value.
int64_t attention_backward(const Inputs& inputs) { return attention_products(inputs, 1, 3, 2); }

using Formula = int64_t (*)(const Inputs&);

/// The operators that autograd and autocast end at, and those that they are made of. See torch/utils/flop_counter.py.
const std::unordered_map<std::string_view, Formula>& formulas() {
  static const std::unordered_map<std::string_view, Formula> all = {
      {"aten::mm", matrix_product<0, 1>},
      {"aten::bmm", matrix_product<0, 1>},
      {"aten::addmm", matrix_product<1, 2>},
      {"aten::addmm_", matrix_product<1, 2>},
      {"aten::_addmm_activation", matrix_product<1, 2>},
      {"aten::addbmm", matrix_product<1, 2>},
      {"aten::addbmm_", matrix_product<1, 2>},
      {"aten::baddbmm", matrix_product<1, 2>},
      {"aten::baddbmm_", matrix_product<1, 2>},
      {"aten::mv", matrix_by_vector<0>},
      {"aten::addmv", matrix_by_vector<1>},
      {"aten::addmv_", matrix_by_vector<1>},
      {"aten::_int_mm", matrix_product<0, 1>},
      {"aten::_scaled_mm", matrix_product<0, 1>},
      {"aten::convolution", convolution},
      {"aten::_convolution", convolution},
      {"aten::convolution_overrideable", convolution},
      {"aten::convolution_backward", convolution_backward},
      {"aten::_scaled_dot_product_flash_attention", attention},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", attention},
      {"aten::_scaled_dot_product_efficient_attention", attention},
      {"aten::_scaled_dot_product_cudnn_attention", attention},
      {"aten::_scaled_dot_product_fused_attention_overrideable", attention},
      {"aten::_scaled_dot_product_flash_attention_backward", attention_backward},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward},
      {"aten::_scaled_dot_product_efficient_attention_backward", attention_backward},
      {"aten::_scaled_dot_product_cudnn_attention_backward", attention_backward},
      {"aten::_scaled_dot_product_fused_attention_overrideable_backward", attention_backward},
  };
  return all;
}

}  // namespace

/// The callback of a thread, and what it has counted.
class FlopCounter::Observer {
 public:
  Observer()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&on_start, &on_end).needsInputs(true).scopes({at::RecordScope::FUNCTION}))) {}
  ~Observer() { at::removeCallback(handle_); }
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  static std::shared_ptr<Observer> of_thread() {
    const MutexLock lock(mutex());
    if (auto found = find()) return found;
    auto made = std::make_shared<Observer>();
    observers()[made->handle_] = made;
    std::erase_if(observers(), [](const auto& entry) { return entry.second.expired(); });
    return made;
  }

  FlopCount count() const { return {.executed = executed_, .recomputed = recomputed_}; }

 private:
  /// An operator is made of others: the outermost that is known counts for them.
  struct Inside : at::ObserverContext {
    Inside(std::shared_ptr<Observer> observer, int64_t count) : counts_for(std::move(observer)), operations(count) {
      ++depth;
    }
    ~Inside() override { --depth; }
    static thread_local int depth;
    const std::shared_ptr<Observer> counts_for;
    const int64_t operations;
    const int exceptions = std::uncaught_exceptions();
    const int64_t given = operators_given();
  };

  static Mutex& mutex() {
    static Mutex all;
    return all;
  }
  static std::map<at::CallbackHandle, std::weak_ptr<Observer>>& observers() LEVIN_REQUIRES(mutex()) {
    static std::map<at::CallbackHandle, std::weak_ptr<Observer>> all;
    return all;
  }

  /// The one whose callback is among the present thread's. LibTorch takes callbacks along to the threads that work for
  /// one, in copies that may outlive the observer.
  static std::shared_ptr<Observer> find() LEVIN_REQUIRES(mutex()) {
    for (const auto& entry : at::get_record_function_tls_().sorted_tls_callbacks_) {
      if (entry.callback_.start() != &on_start) continue;
      const auto found = observers().find(entry.handle_);
      if (found == observers().end()) continue;
      if (auto observer = found->second.lock()) return observer;
    }
    return nullptr;
  }

  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& call) {
    if (Inside::depth > 0) return nullptr;
    const auto formula = formulas().find(call.name());
    if (formula == formulas().end()) return nullptr;
    std::shared_ptr<Observer> observer;
    {
      const MutexLock lock(mutex());
      observer = find();
    }
    if (observer == nullptr) return nullptr;
    return std::make_unique<Inside>(std::move(observer), formula->second(call.inputs()));
  }

  static void on_end(const at::RecordFunction&, at::ObserverContext* context) {
    const auto* inside = static_cast<const Inside*>(context);
    // One that failed did nothing; a recomputation ends in that way, at the last operator that saves a tensor. One
    // whose result was kept did not run.
    if (inside == nullptr || std::uncaught_exceptions() > inside->exceptions || operators_given() != inside->given)
      return;
    inside->counts_for->executed_ += inside->operations;
    if (is_recomputing()) inside->counts_for->recomputed_ += inside->operations;
  }

  const at::CallbackHandle handle_;
  std::atomic<int64_t> executed_{0};
  std::atomic<int64_t> recomputed_{0};
};

thread_local int FlopCounter::Observer::Inside::depth = 0;

FlopCounter::FlopCounter() : observer_(Observer::of_thread()), before_(observer_->count()) {}
FlopCounter::~FlopCounter() = default;

FlopCount FlopCounter::count() const {
  const FlopCount now = observer_->count();
  return {.executed = now.executed - before_.executed, .recomputed = now.recomputed - before_.recomputed};
}

}  // namespace levin
