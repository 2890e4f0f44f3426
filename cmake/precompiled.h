// What nearly every source includes, compiled once for all targets. torch/torch.h is left out on purpose: a source costs
// five seconds more with it, because the compiler instantiates its templates again for each.
#pragma once

#include <levin/core/base/config.h>
#include <levin/core/base/descriptor.h>
#include <levin/core/base/error.h>
#include <levin/core/base/events.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/core/base/mutex.h>
#include <levin/core/base/registry.h>
#include <levin/core/base/schema.h>
#include <levin/core/base/spec.h>
#include <levin/core/base/state.h>
#include <levin/core/comm/collective.h>
#include <levin/core/data/batch.h>
#include <levin/core/data/data_loader.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/strategy.h>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>
