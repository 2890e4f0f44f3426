#pragma once

#include <c10/util/intrusive_ptr.h>

#include <string>
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

/// Returns the message of a parameter that is absent on any rank (see is_released), an earlier call having left it so;
/// empty where all are there: every rank calls it. `known` are not looked at.
std::string absent_parameter(const Module& module, Collective& collective,
                             const std::unordered_set<const void*>& known = {});
/// Throws levin::Error of a step that needs the values. `absent`: from absent_parameter.
void require_parameters(const std::string& strategy, const std::string& absent);

/// Gives every rank the parameters and buffers of rank 0.
void broadcast_model(Module& module, const c10::intrusive_ptr<c10d::ProcessGroup>& group);

/// Gives every rank the buffers of rank 0 (running statistics).
void broadcast_buffers(Module& module, const c10::intrusive_ptr<c10d::ProcessGroup>& group);

}  // namespace levin
