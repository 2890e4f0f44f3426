#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>
#include <vector>

namespace c10d {
class CommHookInterface;
class ProcessGroup;
class Reducer;
}  // namespace c10d

namespace levin {

/// Names of the compressions of gradients: "none", "fp16" and "bf16".
const std::vector<std::string>& gradient_compressions();

/// Lets a reducer send gradients in half the bytes. With bfloat16 the range of float is kept, with half precision more
/// digits; the sum over the ranks is made in the smaller type. Called once, before the first backward.
void compress_gradients(c10d::Reducer& reducer, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                        const std::string& compression);

}  // namespace levin
