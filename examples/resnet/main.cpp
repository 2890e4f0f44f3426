// Trains ResNet50V2 or ResNet152V2 on CIFAR-10, enlarged, on any number of devices.
//
//   build/bin/resnet fit --config examples/resnet/resnet50v2.yaml

#include "resnet_v2.h"

int main(int argc, char** argv) {
  levin::Cli cli;
  cli.modules.add<example::ResNet50V2>("resnet50v2", "50 layers");
  cli.modules.add<example::ResNet152V2>("resnet152v2", "152 layers");
  cli.data.add<levin::data::Cifar10>("cifar10", "32x32 colour images of 10 classes");
  cli.data.add<levin::data::FashionMnist>("fashion_mnist_enlarged",
                                          "28x28 images of garments, 10 classes, where CIFAR-10 is not there");
  return cli.run(argc, argv);
}
