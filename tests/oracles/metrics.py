"""Writes metrics.inc: values that torchmetrics, scikit-learn and plain torch compute for tests/metrics.

Needs torch, torchmetrics 1.9 and scikit-learn; run as `python tests/oracles/metrics.py`.
"""

import pathlib

import sklearn
import sklearn.metrics
import torch
import torchmetrics
from torchmetrics.functional import classification

generator = torch.Generator().manual_seed(20)


def random_logits(*shape):
    return torch.randn(*shape, generator=generator).mul(100).round().div(100)


def random_classes(high, *shape):
    return torch.randint(high, shape, generator=generator)


inputs = {}
expected = {}


def classes():
    """Six classes: 3 is labelled and hardly predicted, 4 only predicted, 5 neither."""
    labels = random_classes(4, 60)
    logits = random_logits(60, 6) + torch.nn.functional.one_hot(labels, 6) * 1.25
    logits[:, 3] -= 2
    logits[:, 5] -= 50
    inputs["class_logits"], inputs["class_labels"] = logits, labels
    for average in ["micro", "macro", "weighted", "none"]:
        options = {"num_classes": 6, "average": average}
        expected[f"precision/{average}"] = classification.multiclass_precision(logits, labels, **options)
        expected[f"recall/{average}"] = classification.multiclass_recall(logits, labels, **options)
        expected[f"f1/{average}"] = classification.multiclass_f1_score(logits, labels, **options)
        for top_k in [1, 2, 3]:
            expected[f"accuracy/{average}/{top_k}"] = classification.multiclass_accuracy(
                logits, labels, top_k=top_k, **options
            )
    for normalize in ["none", "true", "pred", "all"]:
        expected[f"confusion/{normalize}"] = classification.multiclass_confusion_matrix(
            logits, labels, num_classes=6, normalize=normalize
        )


def areas():
    """Binary scores in tenths, so that many are tied, and four classes."""
    labels = random_classes(2, 80)
    scores = (torch.rand(80, generator=generator) * 0.6 + labels * 0.3).mul(10).round().div(10).clamp(0, 0.9)
    inputs["binary_scores"], inputs["binary_labels"] = scores, labels
    expected["auroc/binary"] = sklearn.metrics.roc_auc_score(labels, scores)
    for thresholds in [5, 50]:
        expected[f"auroc/binary/{thresholds}"] = classification.binary_auroc(scores, labels, thresholds=thresholds)

    labels = random_classes(4, 50)
    logits = random_logits(50, 4) + torch.nn.functional.one_hot(labels, 4)
    inputs["auroc_logits"], inputs["auroc_labels"] = logits, labels
    probabilities = logits.double().softmax(1)
    expected["auroc/macro"] = sklearn.metrics.roc_auc_score(labels, probabilities, multi_class="ovr")
    expected["auroc/none"] = classification.multiclass_auroc(probabilities, labels, num_classes=4, average="none")
    for average in ["macro", "none"]:
        expected[f"auroc/{average}/20"] = classification.multiclass_auroc(
            probabilities.float(), labels, num_classes=4, average=average, thresholds=20
        )


def regression():
    predictions, targets = random_logits(12, 3), random_logits(12, 3)
    inputs["predictions"], inputs["targets"] = predictions, targets
    expected["mse"] = torchmetrics.functional.mean_squared_error(predictions, targets)
    expected["rmse"] = torchmetrics.functional.mean_squared_error(predictions, targets, squared=False)
    weights = torch.rand(12, 1, generator=generator).mul(10).round().div(10)
    inputs["weights"] = weights
    mean = torchmetrics.MeanMetric()
    mean.update(predictions, weights)
    expected["mean"] = mean.compute()


def tokens():
    logits, targets = random_logits(3, 5, 7), random_classes(7, 3, 5)
    targets[0, 3:] = -100
    targets[2, 1:] = -100
    inputs["token_logits"], inputs["token_targets"] = logits, targets
    expected["perplexity"] = torchmetrics.functional.text.perplexity(logits, targets, ignore_index=-100)
    expected["perplexity/ignored_token"] = torch.exp(
        torch.nn.functional.cross_entropy(logits[0, :3].double(), targets[0, :3], ignore_index=int(targets[0, 0]))
    )
    inputs["ignored_token"] = targets[0, 0]


def scores_of_classes():
    logits, labels = inputs["class_logits"], inputs["class_labels"]
    for average in ["micro", "macro", "weighted", "none"]:
        options = {"num_classes": 6, "average": average}
        expected[f"specificity/{average}"] = classification.multiclass_specificity(logits, labels, **options)
        expected[f"jaccard/{average}"] = classification.multiclass_jaccard_index(logits, labels, **options)
        expected[f"hamming/{average}"] = classification.multiclass_hamming_distance(logits, labels, **options)
        for beta in [0.5, 2.0]:
            expected[f"fbeta/{average}/{beta}"] = classification.multiclass_fbeta_score(
                logits, labels, beta=beta, **options
            )
    expected["matthews"] = classification.multiclass_matthews_corrcoef(logits, labels, num_classes=6)
    for weights in ["none", "linear", "quadratic"]:
        expected[f"kappa/{weights}"] = classification.multiclass_cohen_kappa(
            logits, labels, num_classes=6, weights=weights
        )


def more_regression():
    predictions, targets = inputs["predictions"].flatten().double(), inputs["targets"].flatten().double()
    predictions = predictions + 0.7 * targets  # correlated
    functional = torchmetrics.functional
    expected["mae"] = functional.mean_absolute_error(predictions, targets)
    expected["mape"] = functional.mean_absolute_percentage_error(predictions, targets)
    expected["r2"] = functional.r2_score(predictions, targets)
    expected["explained_variance"] = functional.explained_variance(predictions, targets)
    expected["pearson"] = functional.pearson_corrcoef(predictions, targets)
    expected["spearman"] = functional.spearman_corrcoef(predictions.mul(2).round(), targets.mul(2).round())
    expected["cosine"] = functional.cosine_similarity(
        predictions.reshape(12, 3), targets.reshape(12, 3), reduction="mean"
    )


def texts():
    """Of tests/metrics/error_rates_test.cpp."""
    written = [
        "this is the prediction",
        "there is an other sample",
        "",
        "größe  in Zürich",
        "日本語 の文",
        "a much longer line than it should be",
    ]
    meant = ["this is the reference", "there is another one", "left out", "Größe in\tZürich", "日本 語の文章", "a line"]
    expected["wer"] = torchmetrics.functional.text.word_error_rate(written, meant)
    expected["cer"] = torchmetrics.functional.text.char_error_rate(written, meant)


def pictures():
    expected["psnr"] = torchmetrics.functional.image.peak_signal_noise_ratio(
        inputs["predictions"], inputs["targets"], data_range=4.0
    )


def literal(values):
    flat = torch.as_tensor(values).flatten().tolist()
    return "{" + ", ".join(f"{value:.9g}" for value in flat) + "}"


def table(name, entries):
    rows = "".join(f'    {{"{key}", {literal(values)}}},\n' for key, values in entries.items())
    return f"const std::map<std::string, std::vector<double>> {name} = {{\n{rows}}};\n"


classes()
areas()
regression()
tokens()
scores_of_classes()
more_regression()
texts()
pictures()
pathlib.Path(__file__).with_suffix(".inc").write_text(
    f"// Written by metrics.py with torch {torch.__version__.split('+')[0]}, torchmetrics {torchmetrics.__version__}, "
    f"scikit-learn {sklearn.__version__}.\n"
    "// clang-format off\n" + table("kInputs", inputs) + "\n" + table("kExpected", expected)
)
