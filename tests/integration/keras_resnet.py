"""Makes one of Keras' ResNets with random weights, and writes them under the names of examples/resnet, with images and
what Keras' model gives for them, into a safetensors file. Prints how many numbers the model has, and how many of them
are trained.

    keras_resnet.py ResNet50V2 IMAGE_SIZE FILE
"""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"

import keras  # noqa: E402
import numpy  # noqa: E402
from safetensors.numpy import save_file  # noqa: E402

random = numpy.random.default_rng(7)


def main(name, image_size, path):
    keras.utils.set_random_seed(7)
    model = getattr(keras.applications, name)(weights=None, classes=10, input_shape=(image_size, image_size, 3),
                                              classifier_activation=None)
    tensors = {}

    def convolution(layer, ours):
        weights = layer.get_weights()
        tensors[f"net.{ours}.weight"] = weights[0].transpose(3, 2, 0, 1)
        if len(weights) == 2:
            weights[1] = random.normal(0, 0.1, weights[1].shape).astype(numpy.float32)
            tensors[f"net.{ours}.bias"] = weights[1]
            layer.set_weights(weights)

    def normalisation(layer, ours):
        # As training may leave them: neither 0 nor 1.
        shape = layer.gamma.shape
        weights = [random.uniform(0.5, 1.5, shape), random.normal(0, 0.1, shape), random.normal(0, 0.1, shape),
                   random.uniform(0.5, 1.5, shape)]
        layer.set_weights(weights)
        for kind, weight in zip(("weight", "bias", "running_mean", "running_var"), weights):
            tensors[f"net.{ours}.{kind}"] = weight.astype(numpy.float32)

    convolution(model.get_layer("conv1_conv"), "0.conv")
    layers = {layer.name: layer for layer in model.layers}
    blocks = [layer[:-len("_preact_bn")] for layer in layers if layer.endswith("_preact_bn")]
    for index, block in enumerate(blocks, start=1):
        normalisation(layers[f"{block}_preact_bn"], f"{index}.preact_bn")
        if f"{block}_0_conv" in layers:
            convolution(layers[f"{block}_0_conv"], f"{index}.shortcut")
        for part in (1, 2, 3):
            convolution(layers[f"{block}_{part}_conv"], f"{index}.conv{part}")
        for part in (1, 2):
            normalisation(layers[f"{block}_{part}_bn"], f"{index}.bn{part}")
    head = len(blocks) + 1
    normalisation(layers["post_bn"], f"{head}.bn")
    kernel, bias = layers["predictions"].get_weights()
    bias = random.normal(0, 0.1, bias.shape).astype(numpy.float32)
    layers["predictions"].set_weights([kernel, bias])
    tensors[f"net.{head}.linear.weight"], tensors[f"net.{head}.linear.bias"] = kernel.T, bias

    images = random.normal(0, 1, (2, image_size, image_size, 3)).astype(numpy.float32)
    tensors["images"] = images.transpose(0, 3, 1, 2)
    tensors["logits"] = keras.ops.convert_to_numpy(model(images, training=False))
    save_file({key: numpy.ascontiguousarray(value) for key, value in tensors.items()}, path)
    trained = sum(int(numpy.prod(weight.shape)) for weight in model.trainable_weights)
    print(model.count_params(), trained)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
