#pragma once

#include <map>
#include <string>

namespace torch::nn {
class Module;
}

namespace levin {

class SequentialImpl;

/// The levin::Sequentials in a module that are not inside of others, by path: what a pipeline could cut.
std::map<std::string, SequentialImpl*> outermost_sequentials(torch::nn::Module& module);

}  // namespace levin
