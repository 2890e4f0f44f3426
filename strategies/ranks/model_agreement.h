#pragma once

#include <c10/util/intrusive_ptr.h>

#include <unordered_set>

namespace c10d {
class ProcessGroup;
}

namespace levin {

class Collective;
class Module;

/// Checks that all ranks built the same model: names, shapes and types of parameters and buffers, and which of them are
/// trained. Throws levin::Error on every rank, naming the first parameter that differs.
void require_same_model(Module& module, Collective& collective);

/// Whether a parameter of any rank is absent (see is_released): every rank calls it. `known` are not looked at.
bool any_rank_lacks_values(const Module& module, Collective& collective,
                           const std::unordered_set<const void*>& known = {});

/// Gives every rank the parameters and buffers of rank 0.
void broadcast_model(Module& module, const c10::intrusive_ptr<c10d::ProcessGroup>& group);

/// Gives every rank the buffers of rank 0 (running statistics).
void broadcast_buffers(Module& module, const c10::intrusive_ptr<c10d::ProcessGroup>& group);

}  // namespace levin
