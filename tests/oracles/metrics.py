"""Writes metrics.inc: values that torchmetrics, scikit-learn and plain torch compute for tests/metrics.

Needs torch, torchmetrics 1.9 and scikit-learn; run as `python tests/oracles/metrics.py`.
"""

import math
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


def curves():
    scores, labels = inputs["binary_scores"], inputs["binary_labels"]
    expected["average_precision/binary"] = sklearn.metrics.average_precision_score(labels, scores)
    precision, recall, thresholds = sklearn.metrics.precision_recall_curve(labels, scores)
    expected["pr_curve"] = [*recall, *precision, *thresholds, math.inf]
    fpr, tpr, thresholds = sklearn.metrics.roc_curve(labels, scores, drop_intermediate=False)
    expected["roc"] = [*fpr, *tpr, *thresholds]
    for count in [5, 50]:
        options = {"thresholds": count}
        expected[f"average_precision/binary/{count}"] = classification.binary_average_precision(
            scores, labels, **options
        )
        precision, recall, thresholds = classification.binary_precision_recall_curve(scores, labels, **options)
        expected[f"pr_curve/{count}"] = [*recall, *precision, *thresholds, math.inf]
        expected[f"roc/{count}"] = torch.cat(classification.binary_roc(scores, labels, **options))
    logits, classes = inputs["auroc_logits"], inputs["auroc_labels"]
    probabilities = logits.softmax(1)
    for count in [None, 20]:
        suffix = "" if count is None else f"/{count}"
        options = {"num_classes": 4, "thresholds": count}
        for average in ["macro", "weighted", "none"]:
            expected[f"average_precision/{average}{suffix}"] = classification.multiclass_average_precision(
                probabilities, classes, average=average, **options
            )
        for least in [0.3, 0.6, 0.9]:
            for name, of_binary, of_classes, least_name in [
                (
                    "precision_at",
                    classification.binary_precision_at_fixed_recall,
                    classification.multiclass_precision_at_fixed_recall,
                    "min_recall",
                ),
                (
                    "recall_at",
                    classification.binary_recall_at_fixed_precision,
                    classification.multiclass_recall_at_fixed_precision,
                    "min_precision",
                ),
            ]:
                value, threshold = of_binary(scores, labels, thresholds=count, **{least_name: least})
                expected[f"{name}/binary/{least}{suffix}"] = [value, threshold]
                values, thresholds = of_classes(probabilities, classes, **{least_name: least}, **options)
                expected[f"{name}/classes/{least}{suffix}"] = torch.cat([values, thresholds])


def calibration():
    logits = random_logits(80)
    inputs["binary_logits"] = logits
    for norm in ["l1", "l2", "max"]:
        for bins in [4, 15]:
            options = {"n_bins": bins, "norm": norm}
            expected[f"calibration/binary/{norm}/{bins}"] = classification.binary_calibration_error(
                logits.double().sigmoid(), inputs["binary_labels"], **options
            )
            expected[f"calibration/classes/{norm}/{bins}"] = classification.multiclass_calibration_error(
                inputs["auroc_logits"].double().softmax(1), inputs["auroc_labels"], num_classes=4, **options
            )


def similar_pictures():
    targets = torch.rand(2, 2, 12, 9, generator=generator).mul(100).round().div(100)
    pictures = (targets + 0.1 * torch.randn(targets.shape, generator=generator)).mul(100).round().div(100)
    inputs["pictures"], inputs["target_pictures"] = pictures, targets
    ssim = torchmetrics.functional.image.structural_similarity_index_measure
    expected["ssim"] = ssim(pictures.double(), targets.double(), data_range=1.0)
    expected["ssim/options"] = ssim(pictures.double(), targets.double(), data_range=2.0, sigma=0.8, k1=0.02, k2=0.05)


def written_texts():
    """Of tests/metrics/text_scores_test.cpp."""
    written = [
        "the cat is on the mat",
        "there is a big tree, near the park here!",
        "größe in Zürich (sehr) klein",
        "A fast brown fox-trot; jumped over 2 dogs",
        "yes",
    ]
    meant = [
        ["there is a cat on the mat", "a cat is on the mat"],
        ["a big tree is growing near the park here", "there is a big tree, in the park."],
        ["Größe in Zürich (sehr) groß"],
        ["a quick brown fox jumped over two dogs", "The fox-trot, over 2 dogs"],
        ["yes"],
    ]
    text = torchmetrics.functional.text
    for n_gram in [1, 2, 4]:
        for smooth in [False, True]:
            expected[f"bleu/{n_gram}/{int(smooth)}"] = text.bleu_score(written, meant, n_gram=n_gram, smooth=smooth)
    expected["chrf"] = text.chrf_score(written, meant)
    expected["chrf/options"] = text.chrf_score(
        written, meant, n_char_order=4, n_word_order=0, beta=1.0, whitespace=True
    )
    for value in ["fmeasure", "precision", "recall"]:
        expected[f"rouge_l/{value}"] = text.rouge_score(written, meant, rouge_keys="rougeL")[f"rougeL_{value}"]


def retrieval():
    queries = random_classes(7, 60)
    scores = (torch.randperm(60, generator=generator) + 1) / 61.0
    relevance = random_classes(4, 60) * random_classes(2, 60) * (queries != 3)
    inputs["queries"], inputs["result_scores"], inputs["relevance"] = queries, scores, relevance
    tied = scores.mul(5).round().div(5) + 0.1
    for action in ["neg", "pos", "skip"]:
        for top_k in [None, 1, 3]:
            name = f"{action}/{top_k or 'all'}"
            options = {"empty_target_action": action, "top_k": top_k}
            expected[f"mrr/{name}"] = torchmetrics.retrieval.RetrievalMRR(**options)(scores, relevance > 0, queries)
            expected[f"map/{name}"] = torchmetrics.retrieval.RetrievalMAP(**options)(scores, relevance > 0, queries)
            ndcg = torchmetrics.retrieval.RetrievalNormalizedDCG(**options)
            expected[f"ndcg/{name}"] = ndcg(scores, relevance, queries)
            ndcg.reset()
            expected[f"ndcg/ties/{name}"] = ndcg(tied, relevance, queries)


def running():
    mean = torchmetrics.aggregation.RunningMean(window=3)
    for i, value in enumerate(inputs["predictions"].flatten()[:8].tolist()):
        mean.update(value)
        expected[f"running_mean/{i}"] = mean.compute()


class PixelFeatures(torch.nn.Module):
    """Every third pixel, and the mean of the others' squares: what a network would say."""

    num_features = 7

    def forward(self, pictures):
        rows = pictures.flatten(1)
        return torch.cat([rows[:, ::3], rows.square().mean(1, keepdim=True)], 1)


def frechet():
    def distance(real, generated):
        metric = torchmetrics.image.fid.FrechetInceptionDistance(feature=PixelFeatures())
        for part in real.split(7):
            metric.update(part, real=True)
        for part in generated.split(5):
            metric.update(part, real=False)
        return metric.compute()

    real, generated = random_logits(40, 2, 3, 3), random_logits(33, 2, 3, 3) * 0.5 + 0.25
    inputs["real_pictures"], inputs["generated_pictures"] = real, generated
    expected["fid"] = distance(real, generated)
    # Covariances without full rank, and one that is zero.
    expected["fid/few"] = distance(real[:4], generated[:3])
    expected["fid/constant"] = distance(real, generated[:1].expand(6, -1, -1, -1))
    expected["fid/far"] = distance(real, generated * 100 + 1000)


def number(value):
    return "NAN" if math.isnan(value) else "INFINITY" if math.isinf(value) else f"{value:.9g}"


def literal(values):
    flat = torch.as_tensor(values).flatten().tolist()
    return "{" + ", ".join(map(number, flat)) + "}"


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
curves()
calibration()
similar_pictures()
written_texts()
retrieval()
running()
frechet()
pathlib.Path(__file__).with_suffix(".inc").write_text(
    f"// Written by metrics.py with torch {torch.__version__.split('+')[0]}, torchmetrics {torchmetrics.__version__}, "
    f"scikit-learn {sklearn.__version__}.\n"
    "// clang-format off\n" + table("kInputs", inputs) + "\n" + table("kExpected", expected)
)
