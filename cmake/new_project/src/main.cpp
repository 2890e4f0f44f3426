#include "data.h"
#include "model.h"

int main(int argc, char** argv) {
  levin::Cli cli;
  cli.modules.add<Model>("model");
  cli.data.add<Circles>("circles");
  return cli.run(argc, argv);
}
