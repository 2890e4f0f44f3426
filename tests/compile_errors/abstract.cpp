// expected: levin: the class is abstract: it lacks a function that its base declares with `= 0`
#include <levin/core/base/registry.h>

class Base : public levin::Configurable {
 public:
  virtual void log_metrics() = 0;
};

class Logger : public Base {
 public:
  virtual void log_metric() {}
};

void add(levin::Registry<Base>& registry) { registry.add<Logger>("logger"); }
