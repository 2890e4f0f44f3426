#include <levin/core/accelerators/operator_recording.h>

#include <levin/core/base/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/COW.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>
#include <utility>

namespace levin {
namespace {

/// Bytes of results after which memory that nobody needs any more is given back.
constexpr size_t kReleaseBytes = size_t{1} << 20;

thread_local OperatorRecording* current = nullptr;

at::Tensor alias_of(const at::Tensor& tensor) {
  // Not the tensor itself: autograd takes a gradient over without a copy only where nobody else holds it.
  return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
      /*version_counter=*/c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true));
}

c10::IValue aliases_in(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(alias_of(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> aliases;
    for (const at::Tensor& tensor : value.toTensorVector())
      aliases.push_back(tensor.defined() ? alias_of(tensor) : tensor);
    return aliases;
  }
  if (value.isList()) {
    auto copy = c10::impl::GenericList(value.toList().elementType());
    for (const c10::IValue& item : value.toListRef()) copy.push_back(aliases_in(item));
    return copy;
  }
  return value;
}

bool is_dense(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided && tensor.has_storage() &&
         !tensor.is_quantized() && !tensor.is_conj() && !tensor.is_neg();
}

bool all_dense(const c10::IValue& value) {
  bool dense = true;
  for_each_tensor(value, [&](const at::Tensor& tensor) { dense = dense && is_dense(tensor); });
  return dense;
}

/// Arguments that an operator changes although its schema does not say so.
bool writes_unsaid(const c10::OperatorHandle& op, size_t argument) {
  const std::string& name = op.schema().name();
  if (name == "aten::native_batch_norm") return argument == 3 || argument == 4;
  if (name == "aten::batch_norm_update_stats") return argument == 1 || argument == 2;
  return false;
}

/// LibTorch's attention asks whether queries, keys and values are one tensor; values do not matter then.
bool compares_a_tensor_with_itself(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (op.schema().name() != "aten::equal") return false;
  const at::Tensor& a = stack[stack.size() - 2].toTensor();
  const at::Tensor& b = stack[stack.size() - 1].toTensor();
  return a.is_alias_of(b) && a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides();
}

void add_number(std::vector<size_t>& to, size_t number) {
  if (std::find(to.begin(), to.end(), number) == to.end()) to.push_back(number);
}

/// Functions of LibTorch that the dispatcher cuts into operators, which are recorded, and that read values themselves.
bool reads_values(const c10::OperatorName& name) {
  constexpr std::array<std::string_view, 10> kNames = {"aten::_pack_padded_sequence",
                                                       "aten::_pack_padded_sequence_backward",
                                                       "aten::_pad_packed_sequence",
                                                       "aten::_sobol_engine_draw",
                                                       "aten::_sobol_engine_ff_",
                                                       "aten::_sobol_engine_scramble_",
                                                       "aten::histogramdd",
                                                       "aten::_nested_tensor_from_mask",
                                                       "aten::nested_to_padded_tensor",
                                                       "aten::_unique"};
  if (std::find(kNames.begin(), kNames.end(), name.name) != kNames.end()) return true;
  if (name.name == "aten::tensor_split") return name.overload_name == "tensor_indices_or_sections";
  if (name.name == "aten::ctc_loss") return name.overload_name == "Tensor";
  constexpr std::array<std::string_view, 4> kPackedNetworks = {"aten::lstm", "aten::gru", "aten::rnn_tanh",
                                                               "aten::rnn_relu"};
  return name.overload_name == "data" &&
         std::find(kPackedNetworks.begin(), kPackedNetworks.end(), name.name) != kPackedNetworks.end();
}

/// Whether a storage has memory; one that was released throws where it is asked.
bool has_memory(c10::StorageImpl& storage) { return storage._mutable_data_ptr_no_checks().get() != nullptr; }

/// Whether a tensor's memory lives as long as its storage does; that of at::from_blob without a deleter need not.
bool owns_memory(const at::Storage& storage) { return storage.data_ptr().get_context() != nullptr; }

/// 64 bits of what memory holds: a copy of all weights would be as much memory again.
size_t hash_of(const at::Storage& storage, size_t bytes) {
  return std::hash<std::string_view>()({static_cast<const char*>(storage.data()), bytes});
}

}  // namespace

void OperatorRecording::call(const c10::OperatorHandle& op, c10::DispatchKeySet after, torch::jit::Stack* stack) {
  if (!failure_.empty()) return op.redispatchBoxed(after, stack);
  record_call(op, after, stack);
}

struct OperatorRecording::Scope {
  explicit Scope(OperatorRecording* recording) : operators(recording) {
    current = recording;
    set_recording_observer(recording);
  }
  ~Scope() {
    at::removeCallback(functions);
    current = nullptr;
    set_recording_observer(nullptr);
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  const OperatorInterceptor::Scope operators;
  const at::CallbackHandle functions =
      at::addThreadLocalCallback(at::RecordFunctionCallback(&on_function).scopes({at::RecordScope::FUNCTION}));
};

std::unique_ptr<at::ObserverContext> OperatorRecording::on_function(const at::RecordFunction& function) {
  if (current == nullptr || current->in_operator_ || !current->failure_.empty()) return nullptr;
  const auto name = function.operator_name();
  if (name && reads_values(*name))
    current->refuse(fmt::format("{}{}{} cannot be recorded: it looks at a value", name->name,
                                name->overload_name.empty() ? "" : "." + name->overload_name,
                                recording_unit() == nullptr ? "" : " in unit " + *recording_unit()));
  return nullptr;
}

OperatorRecording::OperatorRecording(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& state) {
  for (const at::Tensor& input : inputs) trace_.number_of(input);
  trace_.inputs = trace_.storages.size();
  settled_.assign(trace_.inputs, true);
  for (const at::Tensor& tensor : state)
    if (tensor.defined() && is_dense(tensor)) state_.push_back(tensor.storage());
}

OperatorRecording::~OperatorRecording() = default;

void OperatorRecording::refuse(const std::string& why) {
  if (failure_.empty()) failure_ = why;
  watches_.clear();
}

void OperatorRecording::watch(const at::Storage& storage) {
  c10::StorageImpl* const memory = storage.unsafeGetStorageImpl();
  if (!has_memory(*memory) || memory->nbytes() == 0 ||
      c10::impl::cow::is_cow_data_ptr(memory->_mutable_data_ptr_no_checks()))
    return;
  watches_.try_emplace(memory, *memory);
}

void OperatorRecording::watch_all() {
  for (const at::Storage& storage : state_) watch(storage);
  settled_.resize(trace_.storages.size(), false);
  for (size_t number = 0; number < trace_.storages.size(); ++number)
    if (settled_[number]) watch(trace_.storages[number].storage);
}

void OperatorRecording::end_watch(const at::Storage& storage) {
  const auto watch = watches_.find(storage.unsafeGetStorageImpl());
  if (watch == watches_.end()) return;
  const bool was_taken = watch->second.was_taken();
  watches_.erase(watch);
  if (was_taken) refuse_pointer(storage.unsafeGetStorageImpl());
}

void OperatorRecording::end_watches() {
  const auto taken =
      std::find_if(watches_.begin(), watches_.end(), [](const auto& watch) { return watch.second.was_taken(); });
  const c10::StorageImpl* const storage = taken == watches_.end() ? nullptr : taken->first;
  watches_.clear();
  if (storage != nullptr) refuse_pointer(storage);
}

void OperatorRecording::refuse_pointer(const c10::StorageImpl* storage) {
  const auto traced = std::find_if(trace_.storages.begin(), trace_.storages.end(), [&](const TracedStorage& one) {
    return one.storage.unsafeGetStorageImpl() == storage;
  });
  std::string what = "a tensor that was there before the step";
  if (traced != trace_.storages.end()) {
    if (static_cast<size_t>(traced - trace_.storages.begin()) < trace_.inputs)
      what = "a tensor of the batch";
    else if (traced->maker && *traced->maker < trace_.calls.size())
      what = "what " + trace_.calls[*traced->maker].place() + " gave";
  }
  refuse(
      fmt::format("{} is read or written through a pointer (data_ptr(), accessor()), which replays would not "
                  "do again; hint: use operators, or on_train_batch_end",
                  what));
}

void OperatorRecording::begin_part() {
  if (!failure_.empty()) return;
  LEVIN_CHECK(current == nullptr, "a recording inside of another one");
  former_.clear();
  for (auto& version : versions_) version.at_start = version.counter.current_version();
  scope_ = std::make_unique<Scope>(this);
  watch_all();
}

void OperatorRecording::end_part() {
  if (scope_ == nullptr) return;
  scope_.reset();
  end_watches();
  trace_.part_ends.push_back(trace_.calls.size());
  for (auto& version : versions_) {
    version.of_parts.resize(trace_.part_ends.size() - 1, 0);
    version.of_parts.push_back(version.counter.current_version() - version.at_start);
  }
  if (failure_.empty()) look_for_silent_writes();
  former_.clear();
}

void OperatorRecording::abandon_part() {
  scope_.reset();
  watches_.clear();
}

void OperatorRecording::look_for_silent_writes() {
  for (const Former& before : former_) {
    const at::Storage& storage = trace_.storages[before.storage].storage;
    if (storage.nbytes() < before.bytes) return refuse("a tensor that was there before was resized");
    if (before.may_change || before.bytes == 0 || hash_of(storage, before.bytes) == before.hash) continue;
    const auto user = std::find_if(trace_.calls.begin(), trace_.calls.end(), [&](const OperatorCall& call) {
      return std::find(call.reads.begin(), call.reads.end(), before.storage) != call.reads.end();
    });
    return refuse(
        fmt::format("memory that {} reads has changed, and no operator said that it would; hint: it was "
                    "written through a pointer",
                    user == trace_.calls.end() ? "an operator" : user->place()));
  }
}

size_t OperatorRecording::note_argument(const at::Tensor& tensor, bool is_written) {
  const size_t number = trace_.number_of(tensor);
  const TracedStorage& traced = trace_.storages[number];
  if (traced.maker) return number;
  if (std::any_of(former_.begin(), former_.end(), [&](const Former& former) { return former.storage == number; }))
    return number;
  const bool is_there = has_memory(*traced.storage.unsafeGetStorageImpl());
  const size_t bytes = is_there ? traced.storage.nbytes() : 0;
  // Memory of others may be gone when the part ends, and what a replay reads there is what an ordinary step would.
  const bool may_change = is_written || (is_there && !owns_memory(traced.storage));
  former_.push_back({.storage = number,
                     .bytes = bytes,
                     .hash = may_change || !is_there ? 0 : hash_of(traced.storage, bytes),
                     .may_change = may_change});
  return number;
}

void OperatorRecording::note_write(const at::Tensor& tensor, OperatorCall& recorded) {
  const size_t number = note_argument(tensor, /*is_written=*/true);
  add_number(recorded.writes, number);
  if (trace_.storages[number].maker) return;
  for (Former& former : former_)
    if (former.storage == number) former.may_change = true;
  if (tensor.is_inference()) return;
  c10::VariableVersion counter = tensor.unsafeGetTensorImpl()->version_counter();
  const uint32_t now = counter.current_version();
  // Counters have no identity that can be asked for: whether two are one shows when one of them moves.
  const auto moves_with_it = [&](const VersionBumps& version) {
    if (version.counter.current_version() != now) return false;
    counter.set_version(int64_t{now} + 1);
    const bool moved = version.counter.current_version() != now;
    counter.set_version(now);
    return moved;
  };
  if (std::none_of(versions_.begin(), versions_.end(), moves_with_it))
    versions_.push_back({.counter = counter, .at_start = now, .of_parts = {}});
}

void OperatorRecording::do_host_work(const std::vector<at::Tensor>& writes, std::function<void()> work) {
  for (const at::Tensor& tensor : writes)
    if (failure_.empty()) end_watch(tensor.storage());
  if (!failure_.empty()) return work();
  OperatorCall recorded;
  for (const at::Tensor& tensor : writes) {
    const size_t number = note_argument(tensor, /*is_written=*/true);
    add_number(recorded.reads, number);
    add_number(recorded.writes, number);
    for (Former& former : former_)
      if (former.storage == number) former.may_change = true;
  }
  work();
  settled_.resize(trace_.storages.size(), false);
  for (const size_t number : recorded.writes) {
    settled_[number] = true;
    watch(trace_.storages[number].storage);
  }
  recorded.host_work = std::move(work);
  recorded.grad_mode = at::GradMode::is_enabled();
  recorded.default_dtype = c10::get_default_dtype_as_scalartype();
  trace_.calls.push_back(std::move(recorded));
}

std::string OperatorRecording::why_not(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const {
  if (op.hasTag(at::Tag::data_dependent_output)) return "it looks at a value";
  if (op.hasTag(at::Tag::dynamic_output_shape)) return "the shape of its result depends on values";
  if (op.schema().aliasAnalysis() == c10::AliasAnalysisKind::CONSERVATIVE)
    return "it was registered without saying which arguments it changes";
  const auto first = stack.end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  return std::all_of(first, stack.end(), all_dense) ? "" : "one of its tensors is not dense, or not on the CPU";
}

void OperatorRecording::record_call(const c10::OperatorHandle& op, c10::DispatchKeySet after,
                                    torch::jit::Stack* stack) {
  if (compares_a_tensor_with_itself(op, *stack)) return op.redispatchBoxed(after, stack);
  const std::string reason = why_not(op, *stack);
  if (!reason.empty()) {
    refuse(fmt::format("{} cannot be recorded: {}", name_of(op, recording_unit()), reason));
    return op.redispatchBoxed(after, stack);
  }
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  const auto first = stack->end() - static_cast<std::ptrdiff_t>(count);
  for (auto argument = first; argument != stack->end(); ++argument)
    for_each_tensor(*argument, [&](const at::Tensor& tensor) { end_watch(tensor.storage()); });
  if (!failure_.empty()) return op.redispatchBoxed(after, stack);
  OperatorCall recorded;
  recorded.op = op;
  recorded.unit = recording_unit();
  recorded.grad_mode = at::GradMode::is_enabled();
  recorded.default_dtype = c10::get_default_dtype_as_scalartype();
  for (size_t i = 0; i < count; ++i) {
    const c10::IValue& argument = *(first + static_cast<std::ptrdiff_t>(i));
    const auto* alias = schema.arguments()[i].alias_info();
    const bool is_written = (alias != nullptr && alias->isWrite()) || writes_unsaid(op, i);
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      const size_t number = note_argument(tensor, is_written);
      add_number(recorded.reads, number);
      ++trace_.storages[number].aliases;
      if (is_written) note_write(tensor, recorded);
    });
    if (argument.isGenerator() && argument.isPtrType()) trace_.add_generator(argument.toGenerator());
    recorded.arguments.push_back(aliases_in(argument));
  }
  const size_t base = stack->size() - count;
  {
    const OperatorInterceptor::Pause once;
    in_operator_ = true;
    try {
      op.redispatchBoxed(after, stack);
    } catch (...) {
      in_operator_ = false;
      throw;
    }
    in_operator_ = false;
  }
  for (size_t i = base; i < stack->size(); ++i) {
    if (!all_dense((*stack)[i]))
      return refuse(fmt::format("{} cannot be recorded: its result is not dense", name_of(op, recording_unit())));
    for_each_tensor((*stack)[i], [&](const at::Tensor& tensor) {
      const size_t known = trace_.storages.size();
      const size_t number = trace_.number_of(tensor);
      ++trace_.storages[number].aliases;
      if (number < known) return;
      trace_.storages[number].maker = trace_.calls.size();
      recorded.makes.push_back(number);
    });
    recorded.results.push_back(aliases_in((*stack)[i]));
  }
  if (!recorded.makes_empty() && !recorded.makes_constant()) {
    for (const size_t number : recorded.makes) {
      releasable_.push_back(number);
      bytes_made_ += trace_.storages[number].storage.nbytes();
    }
  }
  trace_.calls.push_back(std::move(recorded));
  watch_after(trace_.calls.back());
  if (bytes_made_ > kReleaseBytes) release_memory();
}

void OperatorRecording::watch_after(const OperatorCall& call) {
  // The host may still write into memory that was only made, or looked at in another shape: its first values.
  const bool is_view = call.makes.empty() && call.writes.empty();
  settled_.resize(trace_.storages.size(), false);
  for (const size_t number : call.reads) {
    if (!is_view || !trace_.storages[number].maker) settled_[number] = true;
    if (settled_[number]) watch(trace_.storages[number].storage);
  }
  if (call.makes_empty() || call.makes_constant()) return;
  for (const size_t number : call.makes) {
    settled_[number] = true;
    watch(trace_.storages[number].storage);
  }
}

void OperatorRecording::release_memory() {
  bytes_made_ = 0;
  std::erase_if(releasable_, [&](size_t number) {
    if (trace_.is_held(number)) return false;
    end_watch(trace_.storages[number].storage);
    trace_.storages[number].storage.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, at::kCPU));
    return true;
  });
}

}  // namespace levin
